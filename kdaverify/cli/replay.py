"""`kdaverify replay`: one case again, reported in full."""

from __future__ import annotations

import dataclasses
import inspect
import json
import shlex
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kdaverify.checks.status import Status
from kdaverify.cli.complaint import Complaint, as_complaint
from kdaverify.cli.options import (
    Benchmark,
    Isolate,
    MemoryLimit,
    Standards,
    TimeLimit,
    any_problem_from,
    implementation,
    is_inline,
    limits_from,
)
from kdaverify.limits import Limits
from kdaverify.report.published import opinions_table, standards_line
from kdaverify.verdicts.decision import Ruling
from kdaverify.verdicts.record import RecordError, read
from kdaverify.verdicts.verdict import Verdict

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.verdicts.judge import Judge
    from kdaverify.verdicts.published import NamedBenchmark

CONVENTIONS = "conventions"


@dataclass(frozen=True)
class ReplayedCase:
    """One case of one implementation.

    Args:
        spec: names the implementation.
        problem: JSON or the path of it; "" for the conventions.
        isolate: True where, by the record, it crashed its process.
        benchmark: whose errors published standards compare with; None for an emulated one.
    """

    spec: str
    property: str
    problem: str
    detail: dict[str, Any]
    isolate: bool | None = None
    benchmark: str | None = None


def replay(
    case: Annotated[
        str, typer.Argument(help="a case id of --record, a problem's JSON, or a file that holds it")
    ] = "",
    impl: Annotated[
        str | None, typer.Option(help="implementation; default: the record's, else eager")
    ] = None,
    property_name: Annotated[
        str | None,
        typer.Option(
            "--property", help="property that is tested; default: the record's, else forward"
        ),
    ] = None,
    detail: Annotated[
        str | None, typer.Option(help="the property's own choices, as a JSON object")
    ] = None,
    record: Annotated[Path | None, typer.Option(help="where the case id is looked up")] = None,
    benchmark: Benchmark = None,
    standards: Standards = False,
    isolate: Isolate = None,
    time_limit: TimeLimit = Limits.seconds,
    memory_limit: MemoryLimit = Limits.gib,
) -> int:
    """Repeat one case and show the comparison in full.

    A case that fails runs again stage by stage, on exact inputs and on its own: a table of stages,
    then the first one over its tolerance.

    Examples:
    kdaverify replay --impl port.py --property resume --detail '{"cut": 17}' p.json
    kdaverify replay --record r.jsonl kda-bf16-B1T65-H2HV2-K32V32-mixed-0123456789

    Exit codes: 0 passes, 1 rejected, 2 harness or usage error, 3 not judged.
    """
    if record is None:
        found = ReplayedCase(
            impl or "eager", property_name or ("forward" if case else "conventions"), case, {}
        )
    else:
        found = _recorded(record, case, impl, property_name)
    tested = found if detail is None else dataclasses.replace(found, detail=_object(detail))
    if isolate is not None:
        tested = dataclasses.replace(tested, isolate=isolate)
    if benchmark is not None:
        tested = dataclasses.replace(tested, benchmark=benchmark)
    limits = limits_from(time_limit, memory_limit)
    adapter = implementation(tested.spec, isolate=tested.isolate, limits=limits)
    with Console().status("testing; a borderline failure is re-tested at fresh seeds"):
        verdicts = _judge(tested, adapter, _benchmark(tested, limits))
    for verdict in verdicts:
        _show(Console(), verdict, standards=standards)
    _show_stages(Console(), verdicts, adapter)
    return _ruling(verdicts).exit_code


def _recorded(path: Path, case: str, impl: str | None, property_name: str | None) -> ReplayedCase:
    """The case as the record has it; one that failed before one that passed."""
    if is_inline(case):
        raise Complaint(
            "replay: with --record give a case id, without it a problem's JSON; not both"
        )
    with as_complaint(RecordError, OSError):
        recorded = read(path)
    if recorded.truncated:
        Console(stderr=True).print(Text(recorded.truncated))
    rows = recorded.verdicts
    fitting = [row for row in rows if row.case == case and row.replay]
    fitting = [
        row
        for row in fitting
        if impl in (None, row.implementation) and property_name in (None, row.property)
    ]
    if not fitting:
        raise Complaint(
            f"replay: {path} has no case {case!r} to replay{_narrowed(impl, property_name)}; its"
            " rows name theirs as `case`"
        )
    row = min(fitting, key=lambda row: not row.status.rejects)
    spec, isolate = reported_option(row, "--impl"), True if row.status.takes_process else None
    return ReplayedCase(
        spec or row.implementation,
        row.property,
        row.problem,
        row.detail,
        isolate,
        reported_option(row, "--benchmark"),
    )


def _narrowed(impl: str | None, property_name: str | None) -> str:
    return "".join(
        f" with {option} {value}"
        for option, value in (("--impl", impl), ("--property", property_name))
        if value
    )


def reported_option(row: Verdict, option: str) -> str | None:
    """What the row's replay line gives an option."""
    words = shlex.split(row.replay)
    return words[words.index(option) + 1] if option in words else None


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Complaint(f"--detail: wanted a JSON object, got {text!r} ({error})") from None
    if not isinstance(found, dict):
        raise Complaint(f"--detail: wanted a JSON object, got {text!r}")
    return found


def _benchmark(case: ReplayedCase, limits: Limits) -> NamedBenchmark | None:
    from kdaverify.adapters.base import AdapterError
    from kdaverify.verdicts.published import benchmark_named

    with as_complaint(AdapterError, prefix="--benchmark: "):
        if case.benchmark is None:
            return None
        return benchmark_named(case.benchmark, isolate=case.isolate, limits=limits)


def _judge(case: ReplayedCase, adapter: Adapter, benchmark: NamedBenchmark | None) -> list[Verdict]:
    from kdaverify.verdicts.judge import FatalRejection, Judge, Rejected

    verdicts: list[Verdict] = []
    judge = Judge(adapter, verdicts.append, case.property, spec=case.spec, benchmark=benchmark)
    # A rejection is raised for the sake of tests; its verdicts are reported before.
    with suppress(Rejected, FatalRejection):
        if case.property == CONVENTIONS:
            judge.conventions()
        else:
            _check_property(case)
            _judge_case(judge, case)
    return verdicts


def _judge_case(judge: Judge, case: ReplayedCase) -> None:
    from kdaverify.canonical import ProblemError

    with as_complaint(ProblemError):
        judge(any_problem_from(case.problem), **case.detail)


def _check_property(case: ReplayedCase) -> None:
    from kdaverify.checks.property_table import PROPERTIES

    if case.property not in PROPERTIES:
        raise Complaint(
            f"--property: no property named {case.property!r}; known ones are"
            f" {', '.join(PROPERTIES)}"
        )
    try:
        inspect.signature(PROPERTIES[case.property].check).bind(None, None, **case.detail)
    except TypeError as error:
        raise Complaint(f"--detail: {error} of property {case.property}") from None


def _ruling(verdicts: list[Verdict]) -> Ruling:
    statuses = {verdict.status for verdict in verdicts}
    if statuses - {Status.PASS, Status.SKIP, Status.UNANSWERED, Status.ORACLE_UNCERTIFIED}:
        return Ruling.REJECT
    return Ruling.ACCEPT if statuses == {Status.PASS} else Ruling.INSUFFICIENT


def _show(console: Console, verdict: Verdict, *, standards: bool) -> None:
    colour = {Status.PASS: "bold green", Status.SKIP: "bold yellow"}.get(verdict.status, "bold red")
    console.print(Text(f"{verdict.property} {verdict.output}: {verdict.status}", style=colour))
    console.print(Text(verdict.message))
    table = Table.grid(padding=(0, 2))
    for name in (
        "implementation",
        "contract",
        "case",
        "problem",
        "detail",
        "oracle",
        "device",
        "mode",
        "versions",
        "duration_s",
    ):
        value = getattr(verdict, name)
        if value not in ("", {}):
            if isinstance(value, dict):
                reported = ", ".join(f"{key} {what}" for key, what in value.items())
            else:
                reported = str(value)
            table.add_row(Text(name, style="dim"), Text(reported, overflow="fold"))
    console.print(table)
    if standards and verdict.published:
        console.print(opinions_table(verdict))
    elif said := standards_line([verdict]):
        console.print(said)
    console.print()


def _show_stages(console: Console, verdicts: list[Verdict], adapter: Adapter) -> None:
    """Of a case that fails, every stage by itself, and where it goes wrong first."""
    from kdaverify.checks.localise import steps
    from kdaverify.checks.location import conclude
    from kdaverify.operator import problem_from_json
    from kdaverify.report.stages import stage_table
    from kdaverify.verdicts.locate import at, localises

    if not localises(verdicts):
        return
    first = verdicts[0]
    with console.status("stage by stage"):
        found = list(steps(adapter, problem_from_json(first.problem), first.property, first.detail))
    if any(step.name for step in found):
        console.print(stage_table(found))
    reported = next(
        verdict
        for verdict in at(verdicts, conclude(found, first.property))
        if verdict.stage is not None
    )
    console.print(
        Text(reported.whereabouts(), style="bold red" if reported.names_stage() else "bold")
    )
