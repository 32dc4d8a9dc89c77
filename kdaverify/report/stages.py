"""The stages behind a case as a table: on exact inputs, and on their own."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from kdaverify.checks.location import FEEDS, Feed, Step
from kdaverify.checks.status import Status

COLOURS = {Status.PASS: "green", Status.SKIP: "yellow"}


def stage_table(steps: Iterable[Step]) -> Table:
    """A row a tensor, then a row an equation: status, error / tolerance, "-" if untested."""
    table = Table(title="stage by stage", title_justify="left", title_style="bold")
    table.add_column("stage", no_wrap=True)
    table.add_column("tensor", overflow="fold")
    for feed in FEEDS:
        table.add_column(f"{feed} inputs", no_wrap=True)
        table.add_column("x tolerance", justify="right", no_wrap=True)
    found: dict[tuple[str, str], dict[Feed, Step]] = {}
    for step in steps:
        if step.name:
            found.setdefault((step.stage, step.judged), {})[step.feed] = step
    for equations in (False, True):
        for (stage, judged), fed in found.items():
            if (" = " in judged) is equations:
                table.add_row(
                    stage,
                    Text(judged or "-"),
                    *(cell for feed in FEEDS for cell in _cells(fed.get(feed))),
                )
        table.add_section()
    return table


def _cells(step: Step | None) -> tuple[Text, Text]:
    if step is None:
        return Text("-"), Text("-")
    status, ratio = step.outcome.status, step.outcome.ratio
    return Text(status, style=COLOURS.get(status, "bold red")), Text(
        "-" if ratio is None else f"{ratio:.3g}"
    )
