"""Options that several commands share, and what they name; and what an operator brings to the
command line: commands about it alone, options that declare its kernels.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kdaverify.cli.complaint import Complaint, as_complaint
from kdaverify.limits import ISOLATE, NO_ISOLATE, Limits

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.canonical import Canonical

Command = Callable[..., int | None]

# What is tested.
SPEC: Final = "a name of `kdaverify list impls`, file.py[:object] or module[:object]"
Impls = Annotated[list[str] | None, typer.Option("--impl", help=f"{SPEC}; repeatable")]
Profile = Annotated[
    str,
    typer.Option(help="how much is tested: smoke (quick), acceptance (a release) or nightly"),
]
SEED = typer.Option("--kda-seed", min=0, metavar="N", help="seed of the random problems")
"""Its default is the command's."""
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

# What is found out about a rejected kernel.
DIAGNOSIS: Final = "seconds spent on the diagnosis of each rejected implementation; 0: none"

# What is written.
Record = Annotated[
    Path | None, typer.Option(help="append verdicts to this .jsonl or .parquet file")
]
CONTINUED: Final = "cases that it holds are not repeated"
"""Of a record that a command was cut off in."""
DecisionFile = Annotated[
    Path | None, typer.Option("--json", help="write the decision to this file")
]
FoundFile = Annotated[Path | None, typer.Option("--json", help="write what was found to this file")]

JsonList = Annotated[bool, typer.Option("--json", help="a JSON list of objects with `name`")]

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


def names_of(impl: list[str] | None) -> tuple[str, ...]:
    """What the options `--impl` name, each once; the embedded kernel where there is none."""
    return tuple(dict.fromkeys(impl or ["eager"]))


def regimes_of(names: str | None, known: Collection[str]) -> tuple[str, ...]:
    """The regimes that the option names, commas between; all that are known without it.

    Raises:
        Complaint: one of them is not known.
    """
    chosen = tuple(known) if names is None else tuple(names.split(","))
    if strange := [name for name in chosen if name not in known]:
        raise Complaint(
            f"--regimes: no regime named {', '.join(strange)}; there are {', '.join(known)}"
        )
    return chosen


def limits_from(seconds: float, gib: float) -> Limits:
    """The limits that the options give."""
    with as_complaint(ValueError):
        return Limits(seconds=seconds, gib=gib)


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

    with as_complaint(AdapterError, prefix="--impl: "):
        adapter = housed(find(spec), spec, isolate=isolate, limits=limits)
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
    with as_complaint(ProblemError, UnicodeDecodeError):
        return problem_from_json(text if is_inline(text) else Path(text).read_text())


def of_operator(at: str) -> Any:
    """What an operator's folder holds, by module and name below `kdaverify.operators`: the command
    line has no other way to it, and the other modules of the operator are not loaded for it.
    """
    module, _, name = at.partition(":")
    return getattr(import_module(f"kdaverify.operators.{module}"), name)


def taking(options: Iterable[inspect.Parameter]) -> Callable[[Command], Command]:
    """Gives a command options that others write down, in place of its `**`."""

    def add(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True)
        kept = [found for found in own.parameters.values() if found.kind is not found.VAR_KEYWORD]
        # typer reads a command line off this
        vars(command)["__signature__"] = own.replace(parameters=[*kept, *options])
        return command

    return add
