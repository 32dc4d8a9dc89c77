"""`kdaverify verify`: runs the shipped suites on implementations and ends in a decision."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated

import typer

from kdaverify.checks.property_table import PROPERTIES
from kdaverify.cli.complaint import Complaint
from kdaverify.cli.options import (
    DIAGNOSIS,
    SEED,
    Benchmark,
    DecisionFile,
    Impls,
    Isolate,
    MemoryLimit,
    Processes,
    Profile,
    Record,
    Standards,
    TimeLimit,
    check_processes,
    limits_from,
    names_of,
)
from kdaverify.cli.report import Html, check_html
from kdaverify.cli.request import Request
from kdaverify.limits import DIAGNOSIS_DEFAULT, Limits

RequireImpl = Annotated[
    bool, typer.Option("--require-impl", help="exit with 3 where an implementation cannot run here")
]
DiagnosisTime = Annotated[
    float | None,
    typer.Option(min=0, help=f"{DIAGNOSIS}; default: {DIAGNOSIS_DEFAULT}"),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SUITE",
        help=(
            "test this property alone, which is never enough to accept; repeatable. Operators"
            " beside the delta rule have forward, panel, gradients, laws and calls; layers have"
            " laws"
        ),
    ),
]
MaxFail = Annotated[int, typer.Option(min=0, help="stop after this many failing tests; 0: never")]


def verify(
    impl: Impls = None,
    profile: Profile = "smoke",
    kda_seed: Annotated[int | None, SEED] = None,
    record: Record = None,
    json_file: DecisionFile = None,
    html: Html = None,
    workers: Processes = "auto",
    require_impl: RequireImpl = False,
    benchmark: Benchmark = None,
    diagnosis: DiagnosisTime = None,
    only: Only = None,
    maxfail: MaxFail = 0,
    exitfirst: Annotated[bool, typer.Option("-x", help="stop at the first failing test")] = False,
    standards: Standards = False,
    isolate: Isolate = None,
    time_limit: TimeLimit = Limits.seconds,
    memory_limit: MemoryLimit = Limits.gib,
) -> int:
    """Test implementations with the shipped suites; the exit code is the decision.

    Examples:
    kdaverify verify --impl my_port.py
    kdaverify verify --impl pallas --profile acceptance --json decision.json

    Exit codes: 0 accept, 1 reject, 2 harness or usage error, 3 not enough evidence.
    """
    check_processes(workers)
    if html is not None:
        check_html(html)
    request = Request(
        impls=names_of(impl),
        profile=profile,
        seed=kda_seed,
        record=record or default_record(datetime.now(UTC)),
        json_file=json_file,
        html=html,
        workers=workers,
        require_impl=require_impl,
        benchmark=benchmark,
        diagnosis=diagnosis,
        standards=standards,
        only=checked_properties(only or []),
        maxfail=1 if exitfirst else maxfail,
        isolate=isolate,
        limits=limits_from(time_limit, memory_limit),
    )
    from kdaverify.cli.apart import judge_apart

    return judge_apart(request)


def checked_properties(names: list[str]) -> tuple[str, ...]:
    """The properties that are to be tested alone.

    Raises:
        Complaint: there is none of a name.
    """
    for name in names:
        if name not in PROPERTIES:
            close = get_close_matches(name, PROPERTIES, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(PROPERTIES)}"
            raise Complaint(f"--only: no suite {name!r}; {hint}")
    return tuple(dict.fromkeys(names))


def default_record(now: datetime) -> Path:
    # The process number keeps two sessions of one second apart.
    return Path("records") / f"{now:%Y%m%d-%H%M%S}-{os.getpid()}.jsonl"
