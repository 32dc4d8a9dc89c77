"""What the failing cases of a record have in common."""

from __future__ import annotations

import json
from typing import Final

import polars as pl

from kdaverify.checks.property_table import named
from kdaverify.checks.status import Status
from kdaverify.diagnosis.common_factor import common_factors
from kdaverify.report.html.rows import Rows
from kdaverify.verdicts.verdict import Verdict

NEEDED: Final = (
    "implementation",
    "property",
    "op",
    "dtype",
    "case",
    "detail",
    "output",
    "status",
    "problem",
)
MOST_ROWS: Final = 100_000
"""Each takes about 50 microseconds; of more, every failure counts and as many of the first passes
as there is room for."""


def common_factors_in(rows: Rows, implementation: str) -> tuple[str, ...]:
    """Sentences that separate failing from passing cases; () where nothing fails, or nothing
    separates them.
    """
    own = rows.counted.filter((pl.col("implementation") == implementation) & pl.col("judged"))
    own = own.filter(pl.col("property").is_in(named(lambda found: found.paired)))
    if not own["rejects"].any():
        return ()
    contrasts = _contrasts(rows, own.filter("rejects")["row"])
    kept = own.sort("rejects", "row", descending=[True, False])["row"].head(MOST_ROWS)
    frame = (
        rows.full.with_row_index("row")
        .filter(pl.col("row").is_in(kept.to_list()))
        .select(NEEDED)
        .collect(engine="streaming")
    )
    found = common_factors([_verdict(row) for row in frame.iter_rows(named=True)])
    return (*map(str, found), *contrasts)


def _contrasts(rows: Rows, failing: pl.Series) -> tuple[str, ...]:
    """What was found by changing one thing at a time; a record of an older version has none."""
    said = (
        rows.full.with_row_index("row")
        .filter(pl.col("row").is_in(failing.to_list()) & (pl.col("contrast") != ""))
        .select("contrast")
        .collect(engine="streaming")["contrast"]
    )
    return tuple(f"changing one thing at a time: {one}" for one in said.unique(maintain_order=True))


def _verdict(row: dict[str, str]) -> Verdict:
    """The fields of a verdict that a row holds, unvalidated: the record was checked when it was
    read.
    """
    given = {**row, "status": Status(row["status"]), "detail": json.loads(row["detail"])}
    return Verdict.model_construct(**given)  # pyright: ignore[reportArgumentType]
