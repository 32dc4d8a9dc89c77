"""Two runs side by side, on the outputs that both judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from kdaverify.report.html.rows import Rows

MOST_CHANGED: Final = 25
NOTED: Final = 0.02
"""A median error that moved by less is the same."""


@dataclass(frozen=True)
class OutputChange:
    """One implementation, format and output in both runs.

    Args:
        shared: outputs of cases that both judged.
        broken, mended: of these, rejected now alone and rejected before alone.
        times: median of the ratio now over the ratio before; None where no two were compared.
        before, now: the largest finite ratio.
    """

    implementation: str
    dtype: str
    output: str
    shared: int
    broken: int
    mended: int
    times: float | None
    before: float | None
    now: float | None

    @property
    def moved(self) -> bool:
        return bool(
            self.broken or self.mended or (self.times is not None and abs(self.times - 1) > NOTED)
        )


@dataclass(frozen=True)
class RunComparison:
    """This run beside another.

    Args:
        other: what the other is called.
        only_now, only_before: outputs that one of them alone judged.
        changes: outputs and formats that changed, most first; unchanged: how many did not.
        newly_rejected, mended: outputs rejected now alone, and then alone.
        broken: newly rejected outputs in full, the worst first.
    """

    other: str
    shared: int
    only_now: int
    only_before: int
    newly_rejected: int
    mended: int
    changes: tuple[OutputChange, ...]
    unchanged: int
    broken: tuple[Mapping[str, Any], ...]


def comparison(rows: Rows, before: Rows, other: str) -> RunComparison:
    """What changed since another run; single implementations are compared whatever the names."""
    alone = len(rows.implementations) == len(before.implementations) == 1
    keys = ["same"] if alone else ["same", "who"]
    now, then = (
        side.counted.filter("judged")
        .with_columns(
            pl.col("implementation").cast(pl.String).alias("who"),
            pl.col("dtype", "output").cast(pl.String),
        )
        .unique(["same", "who"], keep="last", maintain_order=True)
        for side in (rows, before)
    )
    earlier = then.select(
        *keys, pl.col("ratio").alias("earlier"), pl.col("rejects").alias("rejected")
    )
    both = now.join(earlier, on=keys, how="inner")
    broken = both.filter(pl.col("rejects") & ~pl.col("rejected")).sort(
        "ratio", "row", descending=[True, False], nulls_last=True
    )
    changes = _changes(both)
    moved = tuple(change for change in changes if change.moved)
    return RunComparison(
        other=other,
        shared=both.height,
        only_now=now.height - both.height,
        only_before=then.height - both.height,
        newly_rejected=broken.height,
        mended=sum(change.mended for change in changes),
        changes=moved[:MOST_CHANGED],
        unchanged=len(changes) - len(moved),
        broken=tuple(rows.shown(broken["row"].head(MOST_CHANGED).to_list())),
    )


def _changes(both: pl.DataFrame) -> tuple[OutputChange, ...]:
    quotient = pl.col("ratio") / pl.col("earlier")
    found = both.group_by("who", "dtype", "output").agg(
        pl.len(),
        (pl.col("rejects") & ~pl.col("rejected")).sum().alias("broken"),
        (~pl.col("rejects") & pl.col("rejected")).sum().alias("mended"),
        quotient.filter(quotient.is_finite() & (quotient > 0)).median().alias("times"),
        pl.col("earlier").filter(pl.col("earlier").is_finite()).max().alias("before"),
        pl.col("ratio").filter(pl.col("ratio").is_finite()).max().alias("now"),
    )
    ranked = found.sort(
        "broken",
        "mended",
        "times",
        "who",
        "dtype",
        "output",
        descending=[True, True, True, False, False, False],
        nulls_last=True,
    )
    return tuple(OutputChange(*row) for row in ranked.iter_rows())
