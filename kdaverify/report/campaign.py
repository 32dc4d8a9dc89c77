"""A campaign on the terminal: how fast it goes while it runs, what it found when it is done."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self

from rich.console import Console
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from kdaverify.report.gate import summary

if TYPE_CHECKING:
    from kdaverify.campaign.kinds import FailureKind
    from kdaverify.campaign.tally import CampaignCounts
    from kdaverify.verdicts.decision import Ruling
    from kdaverify.verdicts.gate import Gated

LOG_SECONDS: Final = 30.0
"""Between lines of a log that is no terminal."""
MOST_KINDS: Final = 12
MOST_TROUBLES: Final = 3


class Pace:
    """Cases done, cases a second, failures and time left: a bar on a terminal, else lines.

    Args:
        known: cases that an earlier run has answered; they do not count for the rate.
    """

    def __init__(self, console: Console, *, wanted: int, known: int) -> None:
        self._console, self._wanted, self._known = console, wanted, known
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._bar.add_task("", total=wanted, completed=known, note="")
        self._started = self._said = time.monotonic()

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._bar.stop()

    def see(self, tally: CampaignCounts) -> None:
        now, done = time.monotonic(), len(tally.done)
        rate = (done - self._known) / max(now - self._started, 1e-9)
        reported = f"{rate:.3g} a second, {tally.failing} failing in {len(tally.kinds)} kinds"
        self._bar.update(self._task, completed=done, note=reported)
        if not self._console.is_terminal and now - self._said > LOG_SECONDS:
            self._said = now
            left = (self._wanted - done) / max(rate, 1e-9)
            self._console.print(
                f"{done} of {self._wanted} cases, {reported}, {left / 60:.0f} minutes left",
                highlight=False,
            )

    def say(self, note: str) -> None:
        self._bar.update(self._task, note=note)


def show_campaign(console: Console, tally: CampaignCounts) -> None:
    """What was found: a table by format, and kinds of failure with their replay lines."""
    table = Table("implementation", "dtype")
    for name in ("cases", "skipped", "failing", "error / tolerance"):
        table.add_column(name, justify="right")
    for (name, dtype), line in sorted(tally.lines.items()):
        table.add_row(
            Text(name),
            dtype,
            str(line.cases),
            str(line.skipped),
            str(line.failing),
            f"{line.worst:.3g}",
        )
    console.print(table)
    kinds = tally.ranked()
    for kind in kinds[:MOST_KINDS]:
        _show_kind(console, kind)
    if len(kinds) > MOST_KINDS:
        console.print(f"and {len(kinds) - MOST_KINDS} more kinds of failure\n")
    for name, reported in sorted(tally.trouble.items()):
        for trouble in reported[:MOST_TROUBLES]:
            console.print(Text(f"{name}: {trouble}", style="magenta"))


def _show_kind(console: Console, kind: FailureKind) -> None:
    shown = kind.shown
    where = shown.whereabouts() or f"{shown.property} {shown.output}"
    struck = (
        f"{kind.verdicts} verdicts of {', '.join(sorted(kind.properties))}, in"
        f" {', '.join(sorted(kind.dtypes))}"
    )
    console.print(Text(f"{shown.implementation}: {shown.status}, {where}", style="bold red"))
    for line in filter(
        None, (struck, kind.diagnosis, shown.headline(), f"{_size(kind)}: {shown.case}")
    ):
        console.print(Padding(Text(line), (0, 0, 0, 2), expand=False))
    # Never broken: the line is there to be pasted.
    console.print(f"  {shown.replay}\n", soft_wrap=True, highlight=False, markup=False)


def _size(kind: FailureKind) -> str:
    return "made smaller" if kind.smaller else "smallest of the random cases"


def campaign_summary(
    tally: CampaignCounts, ruling: Ruling, found: Sequence[Gated]
) -> dict[str, Any]:
    """The same for machines: what the gate writes of its decision, and what was found."""
    return {
        **summary(ruling, found),
        "cases": len(tally.done),
        "wanted": tally.wanted,
        "failing": tally.failing,
        "trouble": dict(tally.trouble),
        "kinds": [
            {
                "implementation": kind.representative.implementation,
                "status": kind.representative.status.value,
                "stage": kind.representative.stage,
                "diagnosis": kind.diagnosis,
                "verdicts": kind.verdicts,
                "properties": sorted(kind.properties),
                "dtypes": sorted(kind.dtypes),
                "number": kind.representative.number,
                "replay": kind.representative.replay,
                "smaller": kind.smaller and kind.smaller.replay,
            }
            for kind in tally.ranked()
        ],
    }
