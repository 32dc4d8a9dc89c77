"""`kdaverify nightly`: the same cases every night, fresh ones by the date,
and what changed since the nights before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from kdaverify.cli.campaign import (
    Address,
    EngineName,
    Where,
    Workers,
    engine_of,
    orders_of,
    paced,
    record_named,
)
from kdaverify.cli.complaint import Complaint, as_complaint
from kdaverify.cli.options import (
    CONTINUED,
    Impls,
    Isolate,
    MemoryLimit,
    Profile,
    TimeLimit,
    limits_from,
    names_of,
)
from kdaverify.limits import Limits
from kdaverify.report.nightly import night_summary, show_night
from kdaverify.report.summary import write_json
from kdaverify.verdicts.decision import WEIGHT, Ruling
from kdaverify.verdicts.record import RecordError, read

if TYPE_CHECKING:
    from kdaverify.campaign.run import CampaignRun
    from kdaverify.campaign.task import Fixed, Orders
    from kdaverify.nightly.history import History
    from kdaverify.nightly.night import Night

MINUTE = 60.0

HistoryFolder = Annotated[
    str, typer.Option(help="folder, or s3://, gs:// or az:// address, that keeps every night")
]
Minutes = Annotated[float, typer.Option(min=0, help="minutes after which no case is started")]
FreshCases = Annotated[
    int, typer.Option(min=0, help="random cases for each implementation, if there is time")
]
NightDate = Annotated[
    str | None,
    typer.Option(
        help="date of the night, as 2026-01-31: seed of the fresh cases; default: today (UTC)"
    ),
]
NightRecord = Annotated[
    Path | None, typer.Option(help=f".jsonl file of tonight's verdicts; {CONTINUED}")
]
DecisionsFile = Annotated[
    Path | None, typer.Option("--json", help="write the decisions to this file")
]


def nightly(
    history: HistoryFolder,
    impl: Impls = None,
    minutes: Minutes = 60.0,
    cases: FreshCases = 10_000,
    date: NightDate = None,
    profile: Profile = "nightly",
    record: NightRecord = None,
    engine: Where = EngineName.LOCAL,
    address: Address = None,
    workers: Workers = None,
    json_file: DecisionsFile = None,
    isolate: Isolate = None,
    time_limit: TimeLimit = Limits.seconds,
    memory_limit: MemoryLimit = Limits.gib,
) -> int:
    """Test implementations every night, and report what changed.

    Tested are the fixed cases of the suites, the cases that earlier nights promoted, and random
    cases of the date until time is up.

    The same command continues a night that was cut off.

    Examples:
    kdaverify nightly --impl my_port.py --history nights --minutes 45

    Exit codes: 0 accept, 1 wrong or worse, 2 harness or usage error, 3 flaky, or not everything was
    tested.
    """
    from kdaverify.campaign.account import of_night
    from kdaverify.campaign.engine import EngineError
    from kdaverify.nightly.history import History, HistoryError

    night, started = _date(date), time.monotonic()
    orders = orders_of(
        names_of(impl),
        profile,
        int(night.replace("-", "")),
        isolate,
        limits_from(time_limit, memory_limit),
    )
    path, console = record or record_named("nightly", night, *orders.specs), Console()
    with as_complaint(EngineError, HistoryError, RecordError):
        kept = History(history)
        run = _night_of(orders, kept, cases, path)
        with closing(engine_of(orders, engine, workers, address)) as many, paced(run, console) as p:
            run.run(many, p.see, more=lambda: time.monotonic() - started < minutes * MINUTE)
        run.seal(of_night)
        found = _conclude(run, tuple(orders.specs), night, kept, path, console)
    rulings = {one.ruling for one in found}
    ruling = next((ruling for ruling in WEIGHT if ruling in rulings), Ruling.INSUFFICIENT)
    _show_decision(console, ruling, path)
    write_json(json_file, lambda: _summary(night, ruling, found))
    return ruling.exit_code


def _night_of(orders: Orders, history: History, cases: int, record: Path) -> CampaignRun:
    """The fixed cases of the suites, those that earlier nights promoted, and random ones."""
    from kdaverify.campaign.run import CampaignRun

    fixed = _fixed(orders.specs, orders.profile, history)
    return CampaignRun(orders, fixed=fixed, cases=cases, record=record)


def _show_decision(console: Console, ruling: Ruling, record: Path) -> None:
    decided = f"decision: {ruling.upper()} (exit code {ruling.exit_code}); record: {record}"
    console.print(Text(decided, style="bold"), soft_wrap=True)


def _summary(date: str, ruling: Ruling, found: list[Night]) -> dict[str, Any]:
    return {
        "date": date,
        "decision": ruling.value,
        "exit_code": ruling.exit_code,
        "implementations": [night_summary(one) for one in found],
    }


def _date(given: str | None) -> str:
    try:
        if given is None:
            date = datetime.now(UTC)
        else:
            date = datetime.strptime(given, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        raise Complaint(f"--date: wanted a date such as 2026-01-31, got {given!r}") from None
    return f"{date:%Y-%m-%d}"


def _fixed(specs: Mapping[str, str], profile: str, history: History) -> list[Fixed]:
    from kdaverify.adapters.registry import find
    from kdaverify.nightly.night import fixed_tasks

    return [task for spec in specs.values() for task in fixed_tasks(find(spec), profile, history)]


def _conclude(
    run: CampaignRun,
    names: tuple[str, ...],
    date: str,
    history: History,
    record: Path,
    console: Console,
) -> list[Night]:
    """Every implementation's night, shown and kept."""
    import polars as pl

    from kdaverify.nightly.history import promoted, table
    from kdaverify.nightly.night import conclude
    from kdaverify.nightly.trend import medians

    nights, verdicts, found = history.nights(), read(record).verdicts, list["Night"]()
    for name in names:
        tonight = table(date, (verdict for verdict in verdicts if verdict.implementation == name))
        night = conclude(
            name,
            tonight,
            nights,
            date,
            untested=run.untested(name),
            trouble=run.tally.trouble.get(name, ()),
        )
        history.write(date, name, tonight, promoted(tonight))
        show_night(
            console, night, medians(pl.concat([nights.filter(pl.col("date") < date), tonight]))
        )
        found.append(night)
    return found
