"""Which of tonight's random cases every later night tests again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kdaverify.nightly.history import QUESTION

if TYPE_CHECKING:
    import polars as pl

MOST: Final = 5
"""Cases that a night may promote for an implementation."""


def promoted(tonight: pl.DataFrame) -> pl.DataFrame:
    """The worst random cases of one implementation: those that failed, then those nearest to their
    tolerance, one row each.
    """
    import polars as pl

    reported = (pl.col("status") != "ORACLE_UNCERTIFIED") & (
        pl.col("rejects") | pl.col("ratio").is_not_null()
    )
    drawn = tonight.filter(pl.col("number").is_not_null() & reported)
    worst = drawn.sort(["rejects", "ratio"], descending=True, nulls_last=True, maintain_order=True)
    return worst.unique(QUESTION, keep="first", maintain_order=True).head(MOST)
