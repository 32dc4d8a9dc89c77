"""`kdaverify kill-matrix`: how many of the known faults the suites find."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from kdaverify.cli.complaint import Complaint, as_complaint
from kdaverify.verdicts.decision import Ruling

if TYPE_CHECKING:
    from kdaverify.kills.journal import Journal
    from kdaverify.kills.known_faults import KnownFault
    from kdaverify.kills.matrix import KillMatrix
    from kdaverify.kills.plan import Plan
    from kdaverify.kills.rows import ConformingRow, FaultRow

PROFILES = ("smoke", "acceptance")
CORES = os.cpu_count() or 1

FaultGlobs = Annotated[
    str, typer.Option(help="globs of ids of bugs, commas between, such as 'H*,DESIGN-?'")
]
MatrixProfile = Annotated[
    str, typer.Option(help="smoke; or acceptance, which tests in full what survives smoke")
]
Workers = Annotated[int, typer.Option(min=1, help="processes; each takes one core and up to 2 GiB")]
Minutes = Annotated[
    float,
    typer.Option(
        min=0.0,
        help="minutes after which the run stops and keeps what is done; --resume continues",
    ),
]
MatrixFile = Annotated[
    Path, typer.Option(help="the matrix as JSON; its journal is written next to it")
]
ConformingToo = Annotated[
    bool,
    typer.Option(
        "--legal/--no-legal", help="whether conforming kernels run through the whole suites too"
    ),
]
BugsOf = Annotated[
    str,
    typer.Option(help="an implementation of the operator whose bugs are run; default: KDA's"),
]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="continue from the journal of a run that was stopped or killed"),
]


def kill_matrix(
    faults: FaultGlobs = "*",
    profile: MatrixProfile = "smoke",
    workers: Workers = CORES,
    minutes: Minutes = 1440.0,
    out: MatrixFile = Path("reports/kill_matrix.json"),
    conforming: ConformingToo = True,
    impl: BugsOf = "",
    resume: Resume = False,
) -> int:
    """Measure what the suites find: run them on every known bug, and on conforming kernels.

    Every fault is a real bug of a public kernel, patched into the embedded one (`kdaverify list
    faults`).

    killed: by a verdict on a test (property, detail, problem) that every conforming kernel passes.

    conforming kernels: the embedded one without the patch, the recurrent one, one that sums
    backwards, and three in other conventions.

    false alarm: whatever rejects a conforming kernel; each runs through the whole suites too,
    unless --no-legal.

    borderline failures count once fresh seeds confirm them. Calls that raise or crash count for
    faults that break calls.

    threshold: numeric faults are tested at strengths 1, 0.5, 0.25 and 0.125, down to the first that
    survives.

    Examples:
    kdaverify kill-matrix
    kdaverify kill-matrix --profile acceptance --workers 14 --minutes 50
    kdaverify kill-matrix --profile acceptance --workers 14 --resume
    kdaverify kill-matrix --faults 'SO*,DESIGN-?' --out solve.json

    Needs no network. After Ctrl-C or kill -9, --resume repeats at most the faults under way.

    Exit codes: 0 done and no false alarm, 1 a conforming kernel was rejected, 2 harness or usage
    error, 3 not finished.
    """
    from kdaverify.kills.matrix import matrix
    from kdaverify.kills.page import show
    from kdaverify.kills.plan import Plan

    plan = Plan(tuple(_tested(faults, profile, impl)), profile, conforming=conforming, impl=impl)
    journal, console = _journal(out, resume=resume), Console()
    complete = _run(plan, workers, time.time() + 60 * minutes, journal, console)
    found = matrix(plan, journal.rows)
    show(console, found)
    out.write_text(json.dumps(found.reported(), indent=1, allow_nan=False) + "\n")
    if complete:
        journal.path.unlink()
    unfinished = "" if complete else "; not finished, go on with --resume"
    console.print(Text(f"written: {out}{unfinished}"), soft_wrap=True)
    return _code(found, complete=complete)


def _journal(out: Path, *, resume: bool) -> Journal:
    """The journal beside the matrix."""
    from kdaverify.kills.journal import Journal, JournalError

    with as_complaint(JournalError):
        return Journal(out.with_suffix(".journal.jsonl"), resume=resume)


def _code(found: KillMatrix, *, complete: bool) -> int:
    if any(row.false_alarms for row in found.conforming):
        return Ruling.REJECT.exit_code
    return Ruling.ACCEPT.exit_code if complete else Ruling.INSUFFICIENT.exit_code


def _tested(pattern: str, profile: str, impl: str) -> list[KnownFault]:
    from kdaverify.adapters.base import AdapterError
    from kdaverify.kills.plan import chosen

    if profile not in PROFILES:
        raise Complaint(f"--profile: wanted {' or '.join(PROFILES)}, got {profile!r}")
    with as_complaint(AdapterError, NotImplementedError, prefix="--impl: "):
        found = chosen(pattern, impl)
    if not found:
        raise Complaint(
            f"--faults: no fault matches {pattern!r}; `kdaverify list faults` names them"
        )
    return found


def _run(plan: Plan, workers: int, until: float, journal: Journal, console: Console) -> bool:
    """Fills the journal; whether nothing is left to do."""
    from kdaverify.kills.pool import rows

    left = plan.jobs(journal.rows)
    with _bar(console, len(left)) as advance:
        try:
            for row in rows(left, workers, until, plan.follow):
                journal.append(row)
                advance(row, len(plan.follow(row)))
        except KeyboardInterrupt:
            console.print("interrupted: what was finished is in the journal")
        except BrokenProcessPool:
            raise Complaint(
                "a process of the matrix died (out of memory?); --resume goes on, with fewer"
                " --workers if so"
            ) from None
    return not plan.jobs(journal.rows)


@contextmanager
def _bar(
    console: Console, total: int
) -> Generator[Callable[[FaultRow | ConformingRow, int], None]]:
    """A bar with the time left; a line for every row where there is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("hunting", total=total)

        def advance(row: FaultRow | ConformingRow, more: int) -> None:
            whole = bar.tasks[task].total or 0
            bar.update(task, advance=1, total=whole + more)
            if not console.is_terminal:
                console.print(_line(row), highlight=False, soft_wrap=True)

        yield advance


def _line(row: FaultRow | ConformingRow) -> str:
    if row.row == "legal":
        return (
            f"{row.id} ({row.profile}, {row.suite}): {len(row.false_alarms)} false alarms in"
            f" {row.runs} runs, {row.seconds:.0f} s"
        )
    first, last = row.attempts[0], row.attempts[-1]
    took = sum(attempt.seconds for attempt in row.attempts)
    if first.kill is None:
        return f"{row.id} ({row.profile}): survives {first.cases} cases, {took:.0f} s"
    if len(row.attempts) == 1:
        weakest = ""
    else:
        weakest = f"; weakest tested {last.strength:g}: {'killed' if last.kill else 'survives'}"
    return (
        f"{row.id} ({row.profile}): killed by {first.kill.property} after {first.cases} cases,"
        f" {took:.0f} s{weakest}"
    )
