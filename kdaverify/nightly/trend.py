"""Whether tonight's errors are those of the nights before, case by case."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median_low
from typing import TYPE_CHECKING, Final

from kdaverify.checks.median_limit import median_limit
from kdaverify.nightly.history import CASE

if TYPE_CHECKING:
    import polars as pl

WINDOW: Final = 14
"""Nights that tonight is compared with."""
CHANGE: Final = 1.02
"""A change that is reported: the same kernel on the same cases gives the same figures, to the last
digit."""
CONFIDENCE: Final = 0.99
FEWEST: Final = 8
"""Cases that a comparison must have."""
GROUP: Final = ("implementation", "property", "dtype", "output")


@dataclass(frozen=True)
class NightlyChange:
    """Tonight's errors of one output over those of the nights before.

    Args:
        cases: run in both.
        ratio: median over them of tonight's error over that of the median night.
        low, high: limits of that median, 99 % each.
    """

    implementation: str
    suite: str
    dtype: str
    output: str
    cases: int
    ratio: float
    low: float
    high: float

    @property
    def worse(self) -> bool:
        return self.low > CHANGE

    @property
    def better(self) -> bool:
        return self.high < 1 / CHANGE

    def __str__(self) -> str:
        said = "worse" if self.worse else "better" if self.better else "unchanged"
        return (
            f"{self.suite} {self.output} {self.dtype}: {said} than in the nights before,"
            f" {self.ratio:.3g} times their error ({self.low:.3g} to {self.high:.3g}, {self.cases}"
            " cases)"
        )


def window(nights: pl.DataFrame, date: str) -> pl.DataFrame:
    """The rows of the last nights before a date, of each implementation."""
    import polars as pl

    earlier = nights.filter(pl.col("date") < date)
    return earlier.filter(
        pl.col("date").rank("dense", descending=True).over("implementation") <= WINDOW
    )


def changes(
    earlier: pl.DataFrame, tonight: pl.DataFrame, flaky: pl.DataFrame
) -> list[NightlyChange]:
    """Tonight against earlier nights, of fixed, passing, steady cases by property and output.

    Math: r_i = tonight's share of the tolerance over the median of the nights before, case by case;
    the median over i has a lower and an upper limit by the bootstrap (`median_limit`). Worse where
    the lower one is above 1.02, better where the upper one is below 1 / 1.02.
    """
    import polars as pl

    figure = [*CASE, "dtype", "output"]
    usable = (
        (pl.col("status") == "PASS")
        & pl.col("number").is_null()
        & pl.col("ratio").is_finite()
        & (pl.col("ratio") > 0)
    )
    before = earlier.filter(usable).group_by(figure).agg(pl.col("ratio").median().alias("before"))
    paired = (
        tonight.filter(usable).join(before, on=figure).join(flaky, on=[*CASE, "output"], how="anti")
    )
    grouped = (
        paired.with_columns(r=pl.col("ratio") / pl.col("before"))
        .group_by(GROUP)
        .agg(pl.col("r"))
        .sort(GROUP)
    )
    return [
        _change(row["implementation"], row["property"], row["dtype"], row["output"], row["r"])
        for row in grouped.iter_rows(named=True)
        if len(row["r"]) >= FEWEST
    ]


def _change(
    implementation: str, suite: str, dtype: str, output: str, ratios: list[float]
) -> NightlyChange:
    low = median_limit(ratios, CONFIDENCE)
    high = 1 / median_limit([1 / ratio for ratio in ratios], CONFIDENCE)
    return NightlyChange(
        implementation, suite, dtype, output, len(ratios), median_low(ratios), low, high
    )


def medians(nights: pl.DataFrame) -> pl.DataFrame:
    """By implementation, format and output, the median share of tolerance, night by night."""
    import polars as pl

    usable = pl.col("number").is_null() & pl.col("ratio").is_finite()
    by_night = (
        nights.filter(usable)
        .group_by(["implementation", "dtype", "output", "date"])
        .agg(pl.col("ratio").median())
    )
    return (
        by_night.sort("date")
        .group_by(["implementation", "dtype", "output"], maintain_order=True)
        .agg(pl.col("date"), pl.col("ratio"))
    )
