"""`kdaverify score`: judges the outputs that came back to an exported folder."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kdaverify.cli.complaint import Complaint
from kdaverify.cli.request import Request
from kdaverify.cli.verify import default_record


def score(
    folder: Annotated[
        Path, typer.Argument(help="folder of `kdaverify export`, its outputs brought back")
    ],
    record: Annotated[
        Path | None, typer.Option(help="append verdicts to this .jsonl or .parquet file")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="write the decision to this file")
    ] = None,
    workers: Annotated[
        str, typer.Option(help="processes; 0 runs in one, auto takes every core")
    ] = "auto",
) -> int:
    """Test the outputs of a kernel that ran on another machine, as if it had run here; the exit
    code is the decision.

    Example: kdaverify score cases --json decision.json

    Calls without outputs are listed, and the decision is then "not enough evidence"; a kernel that
    raised, or files that are cut off, of another type or shape, or made from other inputs are
    rejected; a changed manifest or input, or a file that answers no call, stops here.

    Exit codes: 0 accept, 1 reject, 2 harness or usage error, 3 not enough evidence.
    """
    from kdaverify.adapters.exchange.audit import audit
    from kdaverify.adapters.exchange.manifest import ExchangeError, read

    if not (workers.isdecimal() or workers == "auto"):
        raise Complaint(f"--workers: wanted a number or auto, got {workers!r}")
    try:
        manifest = read(folder)
        with Console(stderr=True).status(f"checking {len(manifest.calls)} files in {folder}"):
            audit(folder, manifest)
    except ExchangeError as error:
        raise Complaint(str(error)) from None
    request = Request(
        impls=(f"offline:score={folder}",),
        profile=manifest.profile,
        seed=manifest.seed,
        record=record or default_record(datetime.now(UTC)),
        json_file=json_file,
        workers=workers,
        require_impl=False,
    )
    from kdaverify.cli.apart import judge_apart

    return judge_apart(request)
