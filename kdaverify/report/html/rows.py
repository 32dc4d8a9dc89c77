"""The rows of a record as columns: what is counted is in memory, what is only shown is fetched for the rows that are shown."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import polars as pl

from kdaverify.checks.status import Status
from kdaverify.verdicts.record import read
from kdaverify.verdicts.verdict import Verdict

TEXTS: Final = ("implementation", "property", "op", "dtype", "regime", "case", "problem", "output", "statistic", "grade", "worst", "message")
MORE_TEXTS: Final = ("stage", "located", "diagnosis", "benchmark", "contract", "oracle", "device", "mode", "replay")
NUMBERS: Final = ("value", "budget", "ratio", "duration_s")
COLUMNS: Final[dict[str, Any]] = {
    **dict.fromkeys((*TEXTS, *MORE_TEXTS), pl.String),
    **dict.fromkeys(NUMBERS, pl.Float64),
    "status": pl.String,
    "detail": pl.String,
    "versions": pl.String,
    "recheck": pl.String,
    "vacuous": pl.Boolean,
    "seed": pl.Int64,
    "peers": pl.List(pl.Float64),
    "published": pl.List(pl.Struct({"rule": pl.String, "says": pl.String})),
}
"""Detail and versions are JSON objects, recheck is a sentence."""

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
        full: every column of COLUMNS.
    """

    full: pl.LazyFrame

    @cached_property
    def counted(self) -> pl.DataFrame:
        """The short columns, and from the problem: `T` (tokens) and `key` (regime); `rejects`, `judged`, `proves`, `asked`, `same`, `row`.

        `asked` tells cases apart (Verdict.asked), `same` their outputs; `row` is the place in `full`.
        """
        status, problem = pl.col("status"), pl.col("problem")
        frame = self.full.with_row_index("row").select(
            "row",
            *(pl.col(name).cast(pl.Categorical) for name in COUNTED),
            "ratio",
            "seed",
            "vacuous",
            pl.col("recheck").ne("").alias("rechecked"),
            status.is_in(REJECTS).alias("rejects"),
            status.is_in(UNJUDGED).not_().alias("judged"),
            (status.eq(Status.PASS.value) & pl.col("vacuous").not_()).alias("proves"),
            pl.struct("property", "dtype", "case", "detail").hash(0).alias("asked"),
            pl.struct("property", "dtype", "case", "detail", "output").hash(0).alias("same"),
            problem.str.extract(r'"T":(\d+)').cast(pl.Int64).alias("T"),
            problem.str.extract(r'"key":"([^"]*)"').cast(pl.Categorical).alias("key"),
        )
        return frame.collect(engine="streaming")

    @cached_property
    def implementations(self) -> tuple[str, ...]:
        return tuple(self.counted["implementation"].cast(pl.String).unique(maintain_order=True).to_list())

    def shown(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """These rows in full, in the order asked for."""
        frame = self.full.with_row_index("row").filter(pl.col("row").is_in(list(rows))).collect(engine="streaming")
        found = {row["row"]: row for row in frame.to_dicts()}
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
    return {
        **{name: getattr(verdict, name, "") or "" for name in (*TEXTS, *MORE_TEXTS)},
        **{name: getattr(verdict, name) for name in (*NUMBERS, "seed")},
        "status": verdict.status.value,
        "detail": json.dumps(verdict.detail, sort_keys=True) if verdict.detail else "",
        "versions": json.dumps(verdict.versions, sort_keys=True),
        "recheck": "" if verdict.recheck is None else str(verdict.recheck),
        "vacuous": bool(verdict.vacuous),
        "peers": list(verdict.peers),
        "published": [{"rule": rule, "says": opinion.says.value} for rule, opinion in verdict.published.items()],
    }
