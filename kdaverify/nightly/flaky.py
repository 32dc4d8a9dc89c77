"""Cases that fail on some nights and pass on others: quarantined, which means reported, counted,
and never taken for a pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kdaverify.nightly.history import QUESTION

if TYPE_CHECKING:
    import polars as pl

TURNS: Final = 2
"""A kernel that was broken, or mended, turns once; one that goes back and forth is flaky."""


def flaky(nights: pl.DataFrame) -> pl.DataFrame:
    """The flaky figures of some nights.

    Returns:
        Their questions and outputs, with `tested`, `failed`, `turns`, the date of the last failure
        in `last`, and a line that replays it.
    """
    import polars as pl

    judged = nights.filter(pl.col("judged")).sort("date")
    # Several rows of one night and figure (a random case that is a regression too) count as one:
    # failed if any did.
    nightly = judged.group_by([*QUESTION, "output", "date"], maintain_order=True).agg(
        pl.col("rejects").any(), pl.col("replay").last(), pl.col("case").last()
    )
    counted = nightly.group_by([*QUESTION, "output"], maintain_order=True).agg(
        tested=pl.len(),
        failed=pl.col("rejects").sum(),
        turns=(pl.col("rejects") != pl.col("rejects").shift()).sum(),
        last=pl.col("date").filter(pl.col("rejects")).max(),
        replay=pl.col("replay").last(),
        case=pl.col("case").last(),
    )
    return counted.filter(pl.col("turns") >= TURNS).sort("failed", descending=True)
