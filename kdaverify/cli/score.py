"""`kdaverify score`: judges the outputs that came back to an exported folder."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kdaverify.cli.complaint import as_complaint
from kdaverify.cli.options import DecisionFile, Processes, Record, check_processes
from kdaverify.cli.request import Request
from kdaverify.cli.verify import default_record


def score(
    folder: Annotated[
        Path, typer.Argument(help="folder of `kdaverify export`, its outputs brought back")
    ],
    record: Record = None,
    json_file: DecisionFile = None,
    workers: Processes = "auto",
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

    check_processes(workers)
    with as_complaint(ExchangeError):
        manifest = read(folder)
        with Console(stderr=True).status(f"checking {len(manifest.calls)} files in {folder}"):
            audit(folder, manifest)
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
