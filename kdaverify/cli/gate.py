"""`kdaverify gate`: a decision on records, under rules, waivers and a ledger."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from kdaverify.cli.complaint import as_complaint
from kdaverify.cli.options import DecisionFile

if TYPE_CHECKING:
    from kdaverify.verdicts.gate import GateCriteria

Records = Annotated[
    list[Path], typer.Argument(help="records (.jsonl or .parquet), decided upon together")
]
Rules = Annotated[
    str | None,
    typer.Option(
        help=(
            "session, campaign, acceptance, nightly or a .toml file; default: by the profile"
            " that ran"
        )
    ),
]
Waivers = Annotated[
    Path | None,
    typer.Option(help="a .toml file of known failures, each capped, owned and expiring"),
]
LedgerFolder = Annotated[
    Path | None, typer.Option(help="folder of accepted precision, which must not get worse")
]


def gate(
    records: Records,
    rules: Rules = None,
    waivers: Waivers = None,
    ledger: LedgerFolder = None,
    junit: Annotated[Path | None, typer.Option(help="write JUnit XML to this file")] = None,
    json_file: DecisionFile = None,
) -> int:
    """Decide on records alone; the exit code is the decision. What was not run does not count as
    passed.

    Examples:
    kdaverify gate records/night.parquet --rules acceptance --waivers waivers.toml
    kdaverify gate record.jsonl --ledger reports/ledger --junit gate.xml

    Exit codes: 0 accept, 1 reject, 2 harness or usage error, 3 not enough evidence.
    """
    from kdaverify.report import gate as page
    from kdaverify.verdicts.decision import heaviest
    from kdaverify.verdicts.gate import gate as decided
    from kdaverify.verdicts.gate import heaviest_first
    from kdaverify.verdicts.record import RecordError
    from kdaverify.verdicts.toml_file import FileError

    with as_complaint(RecordError, FileError, OSError, prefix="gate: "):
        question = question_of(rules, waivers, ledger)
        with Console(stderr=True).status(f"reading {len(records)} records"):
            found = heaviest_first(decided(records, question))
    ruling = heaviest(found)
    page.show(Console(), ruling, found)
    for path, content in (
        (junit, lambda: page.junit(ruling, found)),
        (json_file, lambda: json.dumps(page.summary(ruling, found), indent=2).encode() + b"\n"),
    ):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content())
    return ruling.exit_code


def question_of(rules: str | None, waivers: Path | None, ledger: Path | None) -> GateCriteria:
    """What records are held against today.

    Raises:
        FileError: the waivers or the ledger are wrong.
    """
    from kdaverify.verdicts.gate import GateCriteria
    from kdaverify.verdicts.ledger import Ledger
    from kdaverify.verdicts.waivers import read_waivers

    today = datetime.now(UTC).date()
    forgiven = () if waivers is None else read_waivers(waivers, today)
    return GateCriteria(today, rules, forgiven, None if ledger is None else Ledger(ledger))
