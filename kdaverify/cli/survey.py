"""`kdaverify survey`: every implementation that runs here, one page."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from kdaverify.cli.complaint import Complaint, as_complaint
from kdaverify.cli.options import SEED, Profile
from kdaverify.cli.report import MISSING
from kdaverify.verdicts.record import RecordError

if TYPE_CHECKING:
    from kdaverify.survey.finding import Finding
    from kdaverify.survey.session import SurveyPlan, SurveyStep
    from kdaverify.survey.state import KernelState

SECONDS = 1200.0
"""An interpreted implementation takes minutes."""

StateFolder = Annotated[Path, typer.Option(help="folder of the page, its data and the records")]
OnlyImpls = Annotated[
    list[str] | None,
    typer.Option(
        "--impl", help="judge only these, in this order; repeatable. Default: all that run here"
    ),
]
OtherRecords = Annotated[
    list[Path] | None,
    typer.Option(
        help=(
            "sealed records of other machines, or folders of them, shown beside those of this"
            " one; repeatable"
        )
    ),
]
EarlierState = Annotated[
    Path | None,
    typer.Option(
        help="state.json of an earlier page, whose rows stay where there is no record since"
    ),
]
FindingsFolder = Annotated[
    Path | None,
    typer.Option(help="folder of findings, linked from the rejections that they are about"),
]
SessionProcesses = Annotated[
    str, typer.Option(help="processes of each session; auto takes every core")
]
SessionLimit = Annotated[
    float,
    typer.Option(min=1, help="seconds after which the session of one implementation is ended"),
]
SurveyLimit = Annotated[
    float | None,
    typer.Option(
        min=0, help="minutes after which no further implementation is begun; default: never"
    ),
]
Commit = Annotated[
    str,
    typer.Option(help="commit of the kdaverify that judged, shown on the page; default: none"),
]
PagesOnly = Annotated[
    bool, typer.Option("--pages-only", help="judge nothing: write the page of what was judged")
]


def survey(
    out: StateFolder = Path("state"),
    impl: OnlyImpls = None,
    records: OtherRecords = None,
    earlier: EarlierState = None,
    findings: FindingsFolder = None,
    profile: Profile = "smoke",
    kda_seed: Annotated[int, SEED] = 0,
    workers: SessionProcesses = "auto",
    seconds: SessionLimit = SECONDS,
    minutes: SurveyLimit = None,
    commit: Commit = "",
    pages_only: PagesOnly = False,
) -> int:
    """Judge every implementation that runs here, and write one page of their state.

    The same command continues a survey that was cut off: finished records are taken as they are.

    Examples:
    kdaverify survey --out reports/state --findings reports/findings
    kdaverify survey --out state --impl pallas --impl onnxruntime --records gpu/fla.parquet

    Exit codes: 0 written, whatever was decided; 2 harness or usage error.
    """
    _check_installed()
    from pydantic import ValidationError

    from kdaverify.adapters.registry import shipped
    from kdaverify.survey.finding import FindingError
    from kdaverify.survey.pages import write_state
    from kdaverify.survey.session import SurveyPlan, runnable
    from kdaverify.survey.session import survey as judge

    console = Console()
    here, not_run = runnable(shipped(), _known(impl))
    limit = math.inf if minutes is None else minutes
    plan = SurveyPlan(here, profile, kda_seed, out, seconds, workers, limit, commit)
    with as_complaint(RecordError, FindingError, OSError, ValidationError, prefix="survey: "):
        known = _findings(findings)
        if not pages_only:
            judge(plan, _reporter(console, plan))
        with console.status("reading the records"):
            state = _state(plan, _files(records or []), known, not_run)
        state = state if earlier is None else _with_rows_of(earlier, state, known)
        write_state(state, known, out)
    _summarise(console, state, out)
    return 0


def _check_installed() -> None:
    """Refuses to judge for minutes where the page could not be written."""
    try:
        import_module("kdaverify.survey.pages")
    except ImportError:
        raise Complaint(f"survey: {MISSING}") from None


def _findings(folder: Path | None) -> tuple[Finding, ...]:
    from kdaverify.survey.finding import read_findings

    return () if folder is None else read_findings(folder)


def _state(
    plan: SurveyPlan, elsewhere: list[Path], known: tuple[Finding, ...], not_run: Mapping[str, str]
) -> KernelState:
    """What the records of this machine, and of others, come to."""
    from kdaverify.survey.session import NOT_REACHED, RECORDS
    from kdaverify.survey.state import state_of

    own = sorted((plan.folder / RECORDS).glob("*.jsonl"))
    absent = dict.fromkeys(plan.implementations, NOT_REACHED) | dict(not_run)
    return state_of([*own, *elsewhere], known, absent, plan.commit)


def _with_rows_of(earlier: Path, state: KernelState, known: tuple[Finding, ...]) -> KernelState:
    from kdaverify.survey.state import KernelState, with_earlier

    return with_earlier(state, KernelState.model_validate_json(earlier.read_bytes()), known)


def _summarise(console: Console, state: KernelState, out: Path) -> None:
    accepted = sum(one.is_accepted for one in state.implementations)
    console.print(
        Text(f"{accepted} of {len(state.implementations)} accepted; page: {out / 'state.html'}"),
        soft_wrap=True,
    )
    for name in state.unexplained():
        console.print(Text(f"{name}: rejected, and no finding is about it yet"), soft_wrap=True)


def _known(names: list[str] | None) -> tuple[str, ...]:
    """The implementations that were named.

    Raises:
        Complaint: one of them is none that is shipped.
    """
    from kdaverify.adapters.registry import shipped

    known = {one.name for one in shipped()}
    for name in names or ():
        if name not in known:
            raise Complaint(
                f"--impl: wanted a name of `kdaverify list impls`, got {name!r}; an implementation"
                " of your own is judged by `kdaverify verify`"
            )
    return tuple(dict.fromkeys(names or ()))


def _files(given: list[Path]) -> list[Path]:
    """Records, those of folders included."""
    return [
        path
        for one in given
        for path in (
            sorted((*one.glob("*.jsonl"), *one.glob("*.parquet"))) if one.is_dir() else [one]
        )
    ]


def _reporter(console: Console, plan: SurveyPlan) -> Callable[[int, SurveyStep], None]:
    total = len(plan.implementations)

    def reported(number: int, step: SurveyStep) -> None:
        took = f", {step.seconds:.0f} s" if step.seconds else ""
        console.print(
            Text(f"{number:>3} of {total}  {step.name}: {step.outcome}{took}"), soft_wrap=True
        )

    return reported
