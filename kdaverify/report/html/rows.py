"""The rows of a record as columns: what is counted is in memory, what is only shown is fetched for the rows that are shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl
from pydantic import TypeAdapter

from kdaverify.checks.near_miss import Recheck
from kdaverify.checks.status import Status
from kdaverify.verdicts.record import read
from kdaverify.verdicts.verdict import Verdict

ASKED: Final = ("implementation", "property", "op", "dtype", "regime", "case", "problem", "output")
FOUND: Final = ("statistic", "grade", "worst", "message", "stage", "located", "diagnosis", "benchmark")
BEHIND: Final = ("contract", "oracle", "device", "mode", "replay")
NUMBERS: Final = ("value", "budget", "ratio", "duration_s")
NESTED: Final = ("detail", "versions", "published", "recheck")
COLUMNS: Final[dict[str, Any]] = {
    **dict.fromkeys((*ASKED, *FOUND, *BEHIND, "status", *NESTED), pl.String),
    **dict.fromkeys(NUMBERS, pl.Float64),
    "T": pl.Int64,
    "seed": pl.Int64,
    "vacuous": pl.List(pl.String),
    "peers": pl.List(pl.Float64),
}
"""A column for every field of a verdict that the page needs; what is nested is JSON."""

COUNTED: Final = (
    *("implementation", "property", "op", "dtype", "regime", "output", "status", "grade", "stage", "diagnosis", "contract", "device"),
    *("mode", "oracle"),
)
REJECTS: Final = tuple(status.value for status in Status if status.rejects)
UNJUDGED: Final = tuple(status.value for status in Status if not status.judged)


@dataclass(frozen=True)
class Rows:
    """Verdicts by column.

    Args:
        full: every column of COLUMNS; others do not matter.
    """

    full: pl.LazyFrame

    @cached_property
    def counted(self) -> pl.DataFrame:
        """The short columns, and with them `key` (regime of the problem), `rejects`, `judged`, `proves`, `asked`, `same`, `row`.

        `asked` tells cases apart (Verdict.asked), `same` their outputs; `row` is the place in `full`.
        """
        status, asked = pl.col("status"), ("property", "dtype", "case", "detail")
        frame = self.full.with_row_index("row").select(
            *("row", "T", "ratio", "seed"),
            *(pl.col(name).fill_null("").cast(pl.Categorical) for name in COUNTED),
            status.is_in(REJECTS).alias("rejects"),
            status.is_in(UNJUDGED).not_().alias("judged"),
            (status.eq(Status.PASS.value) & pl.col("vacuous").list.len().eq(0)).alias("proves"),
            pl.struct(asked).hash(0).alias("asked"),
            pl.struct(*asked, "output").hash(0).alias("same"),
            pl.col("problem").str.extract(r'"key":"([^"]*)"').cast(pl.Categorical).alias("key"),
        )
        return frame.collect(engine="streaming")

    @cached_property
    def implementations(self) -> tuple[str, ...]:
        return tuple(self.counted["implementation"].cast(pl.String).unique(maintain_order=True).to_list())

    def of(self, implementation: str) -> pl.DataFrame:
        """What is counted of one implementation."""
        return self.counted.filter(pl.col("implementation") == implementation)

    def shown(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """These rows in full, in the order asked for; what became of a near miss is a sentence."""
        frame = self.full.with_row_index("row").filter(pl.col("row").is_in(list(rows))).collect(engine="streaming")
        found = {row["row"]: {**row, "recheck": _told(row["recheck"])} for row in frame.to_dicts()}
        return [found[row] for row in rows]


def rows_of(verdicts: Iterable[Verdict]) -> Rows:
    """The columns of verdicts in memory."""
    return Rows(pl.DataFrame([_row(verdict) for verdict in verdicts], schema=COLUMNS).lazy())


def read_rows(paths: Sequence[Path]) -> tuple[Rows, tuple[str, ...]]:
    """The columns of records, one after the other.

    Returns:
        The rows, and what is wrong with files that were cut off.
    Raises:
        RecordError: a file is absent or is no record.
    """
    records = [read(path) for path in paths]
    rows = rows_of(verdict for record in records for verdict in record.verdicts)
    return rows, tuple(record.truncated for record in records if record.truncated)


def _row(verdict: Verdict) -> dict[str, Any]:
    nested = json.loads(verdict.model_dump_json(include={*NESTED}))
    problem = json.loads(verdict.problem) if verdict.problem else {}
    return {
        **{name: getattr(verdict, name, None) for name in (*ASKED, *FOUND, *BEHIND, *NUMBERS, "seed")},
        **{name: None if value is None else json.dumps(value, sort_keys=True, separators=(",", ":")) for name, value in nested.items()},
        "status": verdict.status.value,
        "T": problem.get("T"),
        "vacuous": [*verdict.vacuous],
        "peers": [*verdict.peers],
    }


def _told(recheck: str | None) -> str:
    return "" if recheck is None else str(TypeAdapter(Recheck).validate_json(recheck))
