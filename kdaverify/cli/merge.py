"""`kdaverify merge`: one record out of those of many workers, sessions or machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from kdaverify.cli.complaint import as_complaint


def merge(
    records: Annotated[list[Path], typer.Argument(help="records (.jsonl or .parquet)")],
    out: Annotated[
        Path, typer.Option("--out", "-o", help="where to: a .jsonl or .parquet file, replaced")
    ],
) -> int:
    """Merge records: every row once, in the same order for any order of files; mixed versions and
    unfinished runs are reported.

    Example: kdaverify merge records/*.jsonl --out night.parquet

    Exit codes: 0 merged, 2 a record cannot be read.
    """
    from kdaverify.verdicts import merge as merging
    from kdaverify.verdicts.record import RecordError

    console = Console()
    reading = Console(stderr=True).status(f"merging {len(records)} records")
    with as_complaint(RecordError, OSError, prefix="merge: "), reading:
        merged = merging.merge(records)
        merging.write(merged, out)
    rows = merged.rows.height
    console.print(
        Text(
            f"{out}: {rows} rows of {len(merged.accounts)} sessions; {merged.duplicates} duplicates"
            " left out"
        )
    )
    if merged.open_rows:
        console.print(
            Text(
                f"{merged.open_rows} rows are of sessions that never closed their record",
                style="yellow",
            )
        )
    for reported in merged.reported:
        console.print(Text(reported, style="yellow"))
    return 0
