"""What the failing cases of a record have in common."""

from __future__ import annotations

from typing import Final

import polars as pl

from kdaverify.checks.property_table import named
from kdaverify.diagnosis.common_factor import common_factors, in_words
from kdaverify.report.html.rows import Rows
from kdaverify.report.reported_kinds import contrasts_of

MOST_ROWS: Final = 100_000
"""Each takes about 50 microseconds; of more, every failure counts and as many of the first passes
as there is room for."""


def common_factors_in(rows: Rows, implementation: str) -> tuple[str, ...]:
    """Sentences that separate failing from passing cases;
    () where nothing fails, or nothing separates them.
    """
    own = rows.counted.filter((pl.col("implementation") == implementation) & pl.col("judged"))
    failing = own.filter("rejects")["row"]
    if failing.is_empty():
        return ()
    contrasts = contrasts_of([*rows.verdicts(failing.head(MOST_ROWS).to_list()).values()])
    paired = own.filter(pl.col("property").is_in(named(lambda found: found.paired)))
    kept = paired.sort("rejects", "row", descending=[True, False])["row"].head(MOST_ROWS)
    found = common_factors(rows.verdicts(kept.to_list()).values())
    return (
        *in_words(found),
        *(f"changing one thing at a time: {said}" for said in contrasts),
    )
