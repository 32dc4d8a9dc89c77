"""One record out of many: those of several workers, sessions or machines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kdaverify.verdicts import parquet
from kdaverify.verdicts.columns import from_frame, polars
from kdaverify.verdicts.lines import sealed
from kdaverify.verdicts.record import Table, is_parquet, replace, scan
from kdaverify.verdicts.seal import Account
from kdaverify.verdicts.versions import mixed

if TYPE_CHECKING:
    import polars as pl

ORDER: Final = (
    "implementation", "property", "op", "dtype", "regime", "case", "detail", "output", "device",
    "mode", "seed", "status",
)  # fmt: skip
"""What rows are ordered by; what is left is ordered by the rest of them."""
APART: Final = ("duration_s",)
"""Of two runs of the same, what may differ without making them two findings."""


@dataclass(frozen=True)
class Merged:
    """What a merge came to.

    Args:
        rows: the rows of all records, each once, in an order independent of the records'.
        duplicates: rows that were there already.
        accounts: of all sessions, each once.
        open_rows: of sessions that never closed their record.
        reported: what a reader should know: rows cut off, versions mixed.
    """

    rows: pl.DataFrame
    duplicates: int
    accounts: tuple[Account, ...]
    open_rows: int
    reported: tuple[str, ...]


def merge(paths: Sequence[Path]) -> Merged:
    """The records as one.

    Raises:
        RecordError: one of them cannot be read.
    """
    pl = polars("merging records")
    tables = [scan(path) for path in dict.fromkeys(paths)]
    every = pl.concat([table.rows for table in tables]).collect()
    rows = every.unique(
        subset=[name for name in every.columns if name not in APART],
        keep="first",
        maintain_order=True,
    )
    rest = [
        name
        for name in rows.columns
        if name not in ORDER and rows.schema[name] != pl.List(pl.String)
    ]
    rows = rows.sort(
        [*ORDER, *(name for name in rest if rows.schema[name] != pl.List(pl.Float64))],
        nulls_last=False,
    )
    accounts = {
        account.model_dump_json(): account for table in tables for account in table.accounts
    }
    ordered = tuple(accounts[key] for key in sorted(accounts))
    return Merged(
        rows,
        every.height - rows.height,
        ordered,
        sum(table.open_rows for table in tables),
        _reported(tables, rows),
    )


def write(merged: Merged, path: Path) -> None:
    """Writes the merged record, sealed.

    Raises:
        RecordError: an ending that is neither .jsonl nor .parquet.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_parquet(path):
        parquet.write(merged.rows, path, merged.accounts, open_rows=merged.open_rows)
    else:
        replace(
            path, sealed(b"", from_frame(merged.rows), merged.accounts, open_rows=merged.open_rows)
        )


def _reported(tables: Sequence[Table], rows: pl.DataFrame) -> tuple[str, ...]:
    torn = [table.truncated for table in tables if table.truncated]
    schemas = rows["schema_version"].unique().sort().to_list()
    several = [
        f"{name}: {said}" for name, sentences in mixed(rows.lazy()).items() for said in sentences
    ]
    return (
        *torn,
        *several,
        *([f"rows of versions {', '.join(map(str, schemas))}"] if len(schemas) > 1 else []),
    )
