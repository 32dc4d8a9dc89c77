"""A record's rows as columns: counted ones in memory, shown ones fetched."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import polars as pl
from pydantic import TypeAdapter

from kdaverify.checks.borderline import Recheck
from kdaverify.checks.status import Status
from kdaverify.verdicts.columns import to_frame
from kdaverify.verdicts.record import Table
from kdaverify.verdicts.verdict import Verdict

COUNTED: Final = (
    *(
        "implementation", "property", "op", "dtype", "regime", "output", "status", "grade", "stage",
        "diagnosis", "contract", "device",
    ),
    *("mode", "oracle"),
)  # fmt: skip
GROUPED: Final = (
    *("implementation", "property", "op", "dtype", "regime", "case", "detail", "output"),
    *("status", "problem", "stage", "diagnosis", "contrast", "same_as", "recheck"),
)
REJECTS: Final = tuple(status.value for status in Status if status.rejects)
UNJUDGED: Final = tuple(status.value for status in Status if not status.judged)


@dataclass(frozen=True)
class Rows:
    """Verdicts by column.

    Args:
        full: a column for every field of a verdict; what is nested is JSON.
    """

    full: pl.LazyFrame

    @cached_property
    def counted(self) -> pl.DataFrame:
        """The short columns, and `key`, `rejects`, `judged`, `proves`, `case_key`, `same`, `row`.

        `case_key` identifies cases (`Verdict.case_key`), `same` their outputs; `row` is the place
        in `full`.
        """
        status, tested = pl.col("status"), ("property", "dtype", "case", "detail")
        frame = self.full.with_row_index("row").select(
            *("row", "T", "ratio", "seed", "digits_fewer"),
            *(pl.col(name).fill_null("").cast(pl.Categorical) for name in COUNTED),
            status.is_in(REJECTS).alias("rejects"),
            status.is_in(UNJUDGED).not_().alias("judged"),
            (status.eq(Status.PASS.value) & pl.col("vacuous").list.len().eq(0)).alias("proves"),
            pl.struct(tested).hash(0).alias("case_key"),
            pl.struct(*tested, "output").hash(0).alias("same"),
            pl.col("problem").str.extract(r'"key":"([^"]*)"').cast(pl.Categorical).alias("key"),
        )
        return frame.collect(engine="streaming")

    @cached_property
    def implementations(self) -> tuple[str, ...]:
        return tuple(
            self.counted["implementation"].cast(pl.String).unique(maintain_order=True).to_list()
        )

    def of(self, implementation: str) -> pl.DataFrame:
        """What is counted of one implementation."""
        return self.counted.filter(pl.col("implementation") == implementation)

    def shown(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """These rows in full, in order; the re-test of a borderline failure is a sentence."""
        frame = (
            self.full.with_row_index("row")
            .filter(pl.col("row").is_in(list(rows)))
            .collect(engine="streaming")
        )
        found = {
            row["row"]: {**row, "recheck": _reported(row["recheck"])} for row in frame.to_dicts()
        }
        return [found[row] for row in rows]

    def verdicts(self, rows: Sequence[int]) -> dict[int, Verdict]:
        """What groups verdicts, of these rows, unvalidated: they were checked when read."""
        frame = (
            self.full.with_row_index("row")
            .filter(pl.col("row").is_in(list(rows)))
            .select("row", *GROUPED)
            .collect(engine="streaming")
        )
        return {row.pop("row"): _verdict(row) for row in frame.iter_rows(named=True)}


def _verdict(row: dict[str, Any]) -> Verdict:
    recheck = row["recheck"] and TypeAdapter(Recheck).validate_json(row["recheck"])
    given: dict[str, Any] = {
        **row,
        "status": Status(row["status"]),
        "detail": json.loads(row["detail"]),
        "recheck": recheck,
    }
    return Verdict.model_construct(**given)


def rows_of(verdicts: Iterable[Verdict]) -> Rows:
    """The columns of verdicts in memory."""
    return Rows(to_frame(verdicts).lazy())


def rows_in(tables: Iterable[Table]) -> Rows:
    """The columns of records, one after the other."""
    return Rows(pl.concat([table.rows for table in tables]))


def _reported(recheck: str | None) -> str:
    return "" if recheck is None else str(TypeAdapter(Recheck).validate_json(recheck))
