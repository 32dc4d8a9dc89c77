"""The kill matrix as a page of the terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kdaverify.faults.fault import KINDS
from kdaverify.kills.matrix import Found, KillMatrix


def show(console: Console, found: KillMatrix) -> None:
    """By stage, class and property; graded thresholds, survivors, conforming kernels."""
    console.print(_by_stage(found))
    console.print(_by_property(found))
    if any(one.fault.graded and one.weakest for one in found.faults):
        console.print(_thresholds(found))
    survivors = [one for one in found.faults if one.killer is None]
    if survivors:
        console.print(_survivors(survivors))
    for one in found.faults:
        for trouble in one.reported()["trouble"]:
            console.print(Text(f"trouble: {one.fault.id}: {trouble}", style="magenta"))
    _conclusion(console, found)


def _conclusion(console: Console, found: KillMatrix) -> None:
    runs = sum(row.runs for row in found.conforming)
    alarms = [(row.id, alarm) for row in found.conforming for alarm in row.false_alarms]
    for name, alarm in alarms:
        console.print(Text(f"false alarm: {name}: {alarm}", style="bold red"))
    left = f"; {found.unfinished} not finished" if found.unfinished else ""
    tested = f", {found.suites_left} suites not finished" if found.suites_left else ""
    share = f" ({found.killed / len(found.faults):.1%})" if found.faults else ""
    console.print(
        Text(
            f"killed: {found.killed} of {len(found.faults)} faults{share}, {found.under_smoke()} of"
            f" them under smoke{left}; conforming kernels: {len(alarms)} false alarms in {runs}"
            f" runs{tested}",
            style="bold",
        )
    )


def _by_stage(found: KillMatrix) -> Table:
    table = Table(title="killed / tested, by stage and class", title_justify="left")
    table.add_column("stage")
    for kind, about in KINDS.items():
        table.add_column(f"{kind} {about}", justify="right")
    table.add_column("all", justify="right")
    stages = dict.fromkeys(one.fault.stage for one in found.faults)
    for stage in stages:
        table.add_row(stage, *_cells(found, lambda one, stage=stage: one.fault.stage == stage))
    table.add_section()
    table.add_row("all", *_cells(found, lambda _: True))
    return table


def _cells(found: KillMatrix, chosen: Callable[[Found], bool]) -> list[str]:
    group = [one for one in found.faults if chosen(one)]
    parts = [*([one for one in group if one.fault.kind == kind] for kind in KINDS), group]
    return [
        f"{sum(one.killer is not None for one in part)}/{len(part)}" if part else ""
        for part in parts
    ]


def _by_property(found: KillMatrix) -> Table:
    table = Table(title="by the property that killed first", title_justify="left")
    for name in ("property", "faults", "cases until then (median)"):
        table.add_column(name, justify="left" if name == "property" else "right")
    kills: dict[str, list[int]] = {}
    for one in found.faults:
        if one.killer is not None and one.killer.kill is not None:
            kills.setdefault(one.killer.kill.property, []).append(one.reported()["cases"])
    for name, cases in sorted(kills.items(), key=lambda item: -len(item[1])):
        table.add_row(name, str(len(cases)), str(sorted(cases)[len(cases) // 2]))
    return table


def _thresholds(found: KillMatrix) -> Table:
    table = Table(title="graded faults: the smallest strength killed", title_justify="left")
    for name in ("fault", "strength", "of tolerance there", "survives at"):
        table.add_column(name, justify="left" if name == "fault" else "right")
    for one in found.faults:
        weakest = one.weakest
        if one.fault.graded and weakest is not None and weakest.kill is not None:
            ratio = "" if weakest.kill.ratio is None else f"{weakest.kill.ratio:.3g}"
            alive = ", ".join(
                f"{attempt.strength:g}" for attempt in one.attempts if attempt.kill is None
            )
            table.add_row(one.fault.id, f"{weakest.strength:g}", ratio, alive)
    return table


def _survivors(survivors: list[Found]) -> Table:
    table = Table(title="survivors", title_justify="left")
    for name in ("fault", "stage", "class", "what", "why it lives"):
        table.add_column(name, overflow="fold")
    for one in survivors:
        reported = one.reported()
        table.add_row(
            one.fault.id,
            one.fault.stage,
            one.fault.kind,
            one.fault.title,
            reported["why"] or "not explained",
        )
    return table
