"""`kdaverify diagnose`: a recorded failure made small, and what is wrong with the kernel."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kdaverify.cli.complaint import Complaint, as_complaint
from kdaverify.cli.options import Isolate, MemoryLimit, TimeLimit, implementation, limits_from
from kdaverify.cli.replay import reported_option
from kdaverify.limits import DIAGNOSIS_SECONDS, Limits
from kdaverify.verdicts.decision import Ruling
from kdaverify.verdicts.record import RecordError, read
from kdaverify.verdicts.verdict import Verdict

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.checks.location import Location
    from kdaverify.diagnosis.diagnosis import Diagnosis
    from kdaverify.diagnosis.question import PropertyCase

MOST: Final = 4
"""Names that a message lists."""


def diagnose(
    record: Annotated[Path, typer.Argument(help="a record of `kdaverify verify`")],
    case: Annotated[
        str, typer.Argument(help="a case id, the beginning of one, or the number of a row")
    ],
    impl: Annotated[str | None, typer.Option(help="implementation; default: the record's")] = None,
    property_name: Annotated[
        str | None,
        typer.Option("--property", help="property that failed, where several did on the case"),
    ] = None,
    seconds: Annotated[
        float,
        typer.Option(
            min=0, help="time limit: half to minimise the case, half to compare with known bugs"
        ),
    ] = DIAGNOSIS_SECONDS,
    isolate: Isolate = None,
    time_limit: TimeLimit = Limits.seconds,
    memory_limit: MemoryLimit = Limits.gib,
) -> int:
    """Find the cause of a failing case: minimise it, find the first wrong stage, compare with known
    bugs.

    The input is minimised, and its first wrong stage is named. The kernel's outputs are then
    compared with those of every known bug (`kdaverify list faults`) and of simple mistakes, on the
    same input.

    Examples:
    kdaverify diagnose records/night.jsonl kda-bf16-B1T65
    kdaverify diagnose records/night.jsonl 17 --seconds 30

    Exit codes: 0 nothing fails, 1 something does, 2 harness or usage error.
    """
    row = _row(record, case, impl, property_name)
    spec = impl or reported_option(row, "--impl") or row.implementation
    adapter = implementation(spec, isolate=isolate, limits=limits_from(time_limit, memory_limit))
    try:
        found, stage = _diagnosed(adapter, row, seconds)
    finally:
        adapter.end()
    _show(Console(), row, spec, found, stage)
    return Ruling.ACCEPT.exit_code if found.passes else Ruling.REJECT.exit_code


def _diagnosed(adapter: Adapter, row: Verdict, seconds: float) -> tuple[Diagnosis, Location | None]:
    """The diagnosis, and the first wrong stage of the smallest case."""
    from kdaverify.adapters.base import AdapterError
    from kdaverify.canonical import ProblemError
    from kdaverify.checks.localise import localise
    from kdaverify.diagnosis.diagnose import diagnose as diagnosed
    from kdaverify.diagnosis.session import question_of
    from kdaverify.operator import operator_of

    status = Console(stderr=True).status(
        "making the case smaller, and comparing it with known faults"
    )
    with as_complaint(AdapterError, ProblemError), status:
        found = diagnosed(adapter, question_of(row), seconds=seconds)
        smallest = found.smallest
        if not operator_of(smallest.problem).staged:
            return found, found.stage
        return found, localise(adapter, smallest.problem, smallest.property, smallest.detail)


def _show(
    console: Console, row: Verdict, spec: str, found: Diagnosis, stage: Location | None
) -> None:
    failed = f"{row.implementation}: {row.property} {row.output} {row.status}"
    console.print(Text(failed, style="bold red"))
    console.print(Text(f"smallest case that fails: {found.smallest.problem.id}"))
    console.print(
        f"  {_replay(spec, found.smallest)}", soft_wrap=True, highlight=False, markup=False
    )
    if stage is not None:
        console.print(Text(row.model_copy(update=stage.fields).whereabouts()))
    if found.ranked:
        console.print(_table(found))
    console.print(Text(f"diagnosis: {found}", style="bold"))


def _row(path: Path, case: str, impl: str | None, property_name: str | None) -> Verdict:
    """The failing row that is meant."""
    with as_complaint(RecordError, OSError):
        rows = read(path).verdicts
    failing = [row for row in rows if row.status.rejects and row.problem]
    if not failing:
        raise Complaint(
            f"diagnose: wanted a record in which a case fails, got {path}, in which none of"
            f" {len(rows):,} rows does; `kdaverify report {path} --html page.html` shows them"
        )
    if case.isdecimal():
        return _numbered(path, rows, int(case))
    own = [row for row in failing if impl in (None, row.implementation, _spec(row))]
    if not own:
        raise Complaint(
            f"diagnose --impl: {path} has no failure of {impl!r}; failures are of"
            f" {_some(_spec(row) for row in failing)}"
        )
    fitting = [row for row in own if row.case.startswith(case)]
    if not fitting:
        found = any(row.case.startswith(case) for row in rows)
        raise Complaint(
            f"diagnose: wanted a failing case of {path} (its id, the beginning of one, or the"
            f" number of a row), got {case!r}, {'which passes' if found else 'which is none'};"
            f" failing cases: {_some(row.case for row in own)}"
        )
    wanted = [row for row in fitting if property_name in (None, row.property)]
    if not wanted:
        raise Complaint(
            f"diagnose --property: {case} does not fail in {property_name!r}; it fails in"
            f" {_some(row.property for row in fitting)}"
        )
    return wanted[0]


def _numbered(path: Path, rows: Sequence[Verdict], number: int) -> Verdict:
    """The failing row of this number, from 1 on."""
    if not 1 <= number <= len(rows):
        raise Complaint(
            f"diagnose: wanted the number of a row of {path}, 1 to {len(rows)}, got {number};"
            f" failing rows: {_failing_rows(rows)}"
        )
    row = rows[number - 1]
    if not (row.status.rejects and row.problem):
        raise Complaint(
            f"diagnose: row {number} of {path} ({row.property} {row.output} of {row.case}) is"
            f" {row.status}, there is nothing to diagnose; failing rows: {_failing_rows(rows)}"
        )
    return row


def _failing_rows(rows: Sequence[Verdict]) -> str:
    return _some(str(n) for n, row in enumerate(rows, 1) if row.status.rejects and row.problem)


def _spec(row: Verdict) -> str:
    return reported_option(row, "--impl") or row.implementation


def _some(names: Iterable[str]) -> str:
    """A few of them, each once, and how many more."""
    every = [*dict.fromkeys(names)]
    more = f" and {len(every) - MOST} more" if len(every) > MOST else ""
    return f"{', '.join(every[:MOST])}{more}"


def _replay(spec: str, question: PropertyCase) -> str:
    detail = (
        ["--detail", json.dumps(dict(question.detail), sort_keys=True)] if question.detail else []
    )
    words = [
        "kdaverify",
        "replay",
        "--impl",
        spec,
        "--property",
        question.property,
        *detail,
        question.problem.to_json(),
    ]
    return shlex.join(words)


def _table(found: Diagnosis) -> Table:
    table = Table(
        "known bug",
        "what is wrong",
        "residual",
        "noise",
        title="nearest known bugs (residual: share of the error left; noise > 1: another bug)",
        title_justify="left",
    )
    for match in found.ranked:
        style = "bold" if match.indistinguishable else ""
        fault = match.suspect.fault
        away, noise = (f"{figure:.2g}" for figure in (match.fit.distance, match.fit.noise))
        table.add_row(*(Text(text, style) for text in (fault.id, fault.title, away, noise)))
    return table
