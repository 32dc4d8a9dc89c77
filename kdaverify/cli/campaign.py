"""`kdaverify campaign`: many random cases on all cores or devices, here or in a cluster."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from kdaverify.cli.complaint import Complaint, as_complaint
from kdaverify.cli.options import (
    CONTINUED,
    DIAGNOSIS,
    FoundFile,
    Impls,
    Isolate,
    MemoryLimit,
    TimeLimit,
    limits_from,
    names_of,
)
from kdaverify.limits import DIAGNOSIS_SECONDS, Limits
from kdaverify.report.campaign import Pace, campaign_summary, show_campaign
from kdaverify.report.summary import write_json
from kdaverify.verdicts.record import RecordError

if TYPE_CHECKING:
    from kdaverify.campaign.engine import Engine
    from kdaverify.campaign.run import CampaignRun
    from kdaverify.campaign.task import Orders
    from kdaverify.verdicts.gate import Gated


class EngineName(StrEnum):
    LOCAL = "local"
    RAY = "ray"


Workers = Annotated[
    int | None,
    typer.Option(min=1, help="default: one a core, or one a device for kernels on an accelerator"),
]
Where = Annotated[
    EngineName, typer.Option("--engine", help="local: processes of this machine; ray: a cluster")
]
Address = Annotated[
    str | None, typer.Option(help="address of a Ray cluster; default: one that is started here")
]
Diagnosis = Annotated[float, typer.Option(min=0, help=DIAGNOSIS)]
Cases = Annotated[int, typer.Option(min=1, help="random cases for each implementation")]
CostLimit = Annotated[str, typer.Option(help="cost limit of a case: smoke, acceptance or nightly")]
CasesSeed = Annotated[
    int,
    typer.Option(
        "--kda-seed", min=0, help="seed of the cases; case i of a seed is always the same"
    ),
]
ContinuedRecord = Annotated[
    Path | None, typer.Option(help=f".jsonl file of all verdicts; {CONTINUED}")
]


def campaign(
    impl: Impls = None,
    cases: Cases = 1000,
    profile: CostLimit = "acceptance",
    kda_seed: CasesSeed = 0,
    record: ContinuedRecord = None,
    engine: Where = EngineName.LOCAL,
    address: Address = None,
    workers: Workers = None,
    json_file: FoundFile = None,
    diagnosis: Diagnosis = DIAGNOSIS_SECONDS,
    isolate: Isolate = None,
    time_limit: TimeLimit = Limits.seconds,
    memory_limit: MemoryLimit = Limits.gib,
) -> int:
    """Test many random cases: the same cases and verdicts for any number of workers.

    The same command continues a record after Ctrl-C, a crash or a power cut; with more --cases it
    goes further.

    Failures are grouped by kind. Each is shown with its diagnosis or wrong stage, and with a
    minimised case.

    Examples:
    kdaverify campaign --impl my_port.py --cases 10000 --record many.jsonl
    kdaverify campaign --impl fla --cases 1000000 --engine ray --record many.jsonl

    The decision is that of `kdaverify gate` on the record.

    Exit codes: 0 accept, 1 reject, 2 harness or usage error, 3 not every case was tested, or too
    few for a decision.
    """
    from kdaverify.campaign.engine import EngineError
    from kdaverify.report.gate import show
    from kdaverify.verdicts.decision import heaviest

    orders = orders_of(
        names_of(impl),
        profile,
        kda_seed,
        isolate,
        limits_from(time_limit, memory_limit),
    )
    path = record or record_named("campaign", *orders.specs, profile, str(kda_seed))
    console = Console()
    with as_complaint(EngineError), as_complaint(RecordError, prefix="--"):
        run = _campaign_of(orders, cases, path)
        with closing(engine_of(orders, engine, workers, address)) as many:
            _run(run, many, console, diagnosis)
        found = _decided(run, path)
    ruling = heaviest(found)
    show_campaign(console, run.tally)
    show(console, ruling, found)
    console.print(Text(f"record: {path}"), soft_wrap=True)
    write_json(json_file, lambda: campaign_summary(run.tally, ruling, found))
    return ruling.exit_code


def _campaign_of(orders: Orders, cases: int, record: Path) -> CampaignRun:
    from kdaverify.campaign.run import CampaignRun
    from kdaverify.verdicts.columns import polars

    # Refused before hours of cases: the decision on them reads columns.
    polars("a campaign")
    return CampaignRun(orders, cases=cases, record=record)


def _decided(run: CampaignRun, record: Path) -> list[Gated]:
    """Seals the record, and decides on it alone."""
    from kdaverify.campaign.account import of_campaign
    from kdaverify.verdicts.gate import GateCriteria, gate

    run.seal(of_campaign)
    return gate([record], GateCriteria(datetime.now(UTC).date()))


def record_named(*words: str) -> Path:
    """Where a record is kept if the command line does not say; no word leads out of the folder."""
    return Path("records") / f"{'-'.join(words)}.jsonl".replace("/", "_").replace(":", "_")


def _run(run: CampaignRun, engine: Engine, console: Console, diagnosis: float) -> None:
    with paced(run, console) as pace:
        run.run(engine, pace.see)
        run.shrink(engine, lambda left: pace.say(f"{left} kinds of failure to make smaller"))
        run.diagnose(
            engine,
            lambda left: pace.say(f"{left} kinds of failure to diagnose"),
            seconds=diagnosis,
        )


@contextmanager
def paced(run: CampaignRun, console: Console) -> Generator[Pace]:
    """A line of progress until all cases have run, or Ctrl-C: what is recorded stays."""
    with Pace(console, wanted=run.tally.wanted, known=len(run.tally.done)) as pace:
        try:
            yield pace
        except KeyboardInterrupt:
            console.print(
                f"interrupted: {len(run.tally.done)} cases are recorded; the same command continues"
                " them"
            )


def orders_of(
    impls: tuple[str, ...],
    profile: str,
    seed: int,
    isolate: bool | None,  # noqa: FBT001 # as typer gives it
    limits: Limits,
) -> Orders:
    """The arguments of every worker.

    Raises:
        Complaint: no such implementation or profile, one that cannot run, two of one name.
    """
    from kdaverify.adapters.base import AdapterError
    from kdaverify.adapters.registry import find
    from kdaverify.campaign.task import Orders
    from kdaverify.problems.profiles import check_profile

    specs: dict[str, str] = {}
    with as_complaint(ValueError, prefix="--"), as_complaint(AdapterError, prefix="--impl: "):
        check_profile(profile)
        for spec in impls:
            name = find(spec).name
            if name in specs:
                raise Complaint(
                    f"--impl: {specs[name]} and {spec} are both named {name!r}; rename one: records"
                    " go by the name"
                )
            specs[name] = spec
    return Orders(specs, profile, seed, str(Path.cwd()), isolate, limits)


def engine_of(orders: Orders, name: EngineName, workers: int | None, address: str | None) -> Engine:
    """The engine that the options select.

    Raises:
        Complaint: the implementations run on different devices, or one cannot run here.
        EngineError: it cannot be had.
    """
    from kdaverify.adapters.registry import find
    from kdaverify.campaign.engine import places

    adapters = {name: find(spec) for name, spec in orders.specs.items()}
    devices = {name: adapter.device for name, adapter in adapters.items()}
    if len({*devices.values()}) > 1:
        reported = ", ".join(f"{name} on {device}" for name, device in devices.items())
        raise Complaint(
            f"--impl: wanted implementations of one device, got {reported}; run one campaign for"
            " each device"
        )
    device = next(iter(devices.values()))
    if name is EngineName.LOCAL:
        from kdaverify.campaign.engine_local import LocalEngine

        if address is not None:
            raise Complaint("--address: is that of a Ray cluster; add --engine ray")
        for adapter in adapters.values():
            if missing := adapter.missing():
                raise Complaint(f"--impl: {adapter.name} cannot run here, {missing}")
        return LocalEngine(orders, places=workers or places(device), device=device)
    from kdaverify.campaign.engine_ray import RayEngine

    return RayEngine(orders, places=workers, device=device, address=address)
