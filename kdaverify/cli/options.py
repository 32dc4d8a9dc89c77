"""Options and arguments that several commands share, and what they name."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kdaverify.cli.complaint import Complaint
from kdaverify.limits import ISOLATE, NO_ISOLATE, Limits

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.canonical import Canonical

# What is tested.
Impls = Annotated[
    list[str] | None,
    typer.Option(
        "--impl",
        help="a name of `kdaverify list impls`, file.py[:object] or module[:object]; repeatable",
    ),
]
Profile = Annotated[
    str,
    typer.Option(help="how much is tested: smoke (quick), acceptance (a release) or nightly"),
]
Processes = Annotated[str, typer.Option(help="processes; 0 runs in one, auto takes every core")]

# What is compared with.
Benchmark = Annotated[
    str | None,
    typer.Option(
        help=(
            "implementation whose errors published standards compare with; default: an emulated"
            " baseline kernel"
        )
    ),
]
Standards = Annotated[bool, typer.Option("--standards", help="one row for each published standard")]

# What is written.
Record = Annotated[
    Path | None, typer.Option(help="append verdicts to this .jsonl or .parquet file")
]
DecisionFile = Annotated[
    Path | None, typer.Option("--json", help="write the decision to this file")
]
FoundFile = Annotated[Path | None, typer.Option("--json", help="write what was found to this file")]

# Where kernels run, and what they may take there.
Isolate = Annotated[
    bool | None,
    typer.Option(
        "--isolate/--no-isolate", help=f"--isolate: {ISOLATE}; --no-isolate: {NO_ISOLATE}"
    ),
]
TimeLimit = Annotated[
    float, typer.Option("--time-limit", help="seconds that one call may take in a worker process")
]
MemoryLimit = Annotated[
    float, typer.Option("--memory-limit", help="memory of a worker process, in GiB")
]


def limits_from(seconds: float, gib: float) -> Limits:
    """The limits that the options give."""
    try:
        return Limits(seconds=seconds, gib=gib)
    except ValueError as error:
        raise Complaint(str(error)) from None


def check_processes(workers: str) -> None:
    """Refuses what is no number of processes.

    Raises:
        Complaint: it is neither a number nor auto.
    """
    if not (workers.isdecimal() or workers == "auto"):
        raise Complaint(f"--workers: wanted a number or auto, got {workers!r}")


def implementation(spec: str, *, isolate: bool | None, limits: Limits) -> Adapter:
    """What `--impl` names, in the process it is to run in.

    Raises:
        Complaint: there is none, or it cannot run here.
    """
    from kdaverify.adapters.base import AdapterError
    from kdaverify.adapters.isolation import housed
    from kdaverify.adapters.registry import find

    try:
        adapter = housed(find(spec), spec, isolate=isolate, limits=limits)
    except AdapterError as error:
        raise Complaint(f"--impl: {error}") from None
    missing = adapter.missing()
    if missing:
        raise Complaint(f"--impl: {adapter.name} cannot run here, {missing}")
    return adapter


def is_inline(text: str) -> bool:
    return text.lstrip().startswith("{")


def any_problem_from(text: str) -> Canonical:
    """The problem, of any operator, that `text`, a path or inline JSON, holds.

    Raises:
        Complaint: no such file, or no problem in it.
    """
    from kdaverify.canonical import ProblemError
    from kdaverify.operator import problem_from_json

    if not is_inline(text) and not Path(text).is_file():
        raise Complaint(
            f"problem: no file {text}; give the path of a problem's JSON, or the JSON itself in"
            " single quotes"
        )
    try:
        return problem_from_json(text if is_inline(text) else Path(text).read_text())
    except (ProblemError, UnicodeDecodeError) as error:
        raise Complaint(str(error)) from None
