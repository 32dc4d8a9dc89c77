"""Error / tolerance against the number of tokens T."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from kdaverify.report.html.rows import Rows

FLOOR: Final = 2.0**-7
"""The lowest ratio of the chart; smaller ones lie on its lower edge."""


@dataclass(frozen=True)
class LengthBin:
    """All outputs with at least `T` and less than 2 `T` tokens.

    Args:
        half, most, worst: ratios that half, and nine of ten, stay below, and the largest.
        x, y_half, y_most, y_worst: places in the picture, 0 to 1; y from the tolerance downwards.
    """

    T: int
    judged: int
    failed: int
    half: float
    most: float
    worst: float
    x: float
    y_half: float
    y_most: float
    y_worst: float

    @property
    def labelled(self) -> bool:
        """Whether T is a power of four: every other octave has room for its number."""
        return self.T.bit_length() % 2 == 1


@dataclass(frozen=True)
class Lengths:
    implementation: str
    points: tuple[LengthBin, ...]


def lengths(rows: Rows) -> list[Lengths]:
    """One picture for every implementation, with one axis for all."""
    compared = rows.counted.filter(pl.col("judged") & pl.col("T").is_not_null() & (pl.col("T") > 0))
    octaves = compared.with_columns(
        pl.col("T").cast(pl.Float64).log(2).floor().cast(pl.Int64).alias("octave")
    )
    last = octaves["octave"].max()
    widest = last if isinstance(last, int) and last > 0 else 1
    passed = pl.col("ratio").filter(pl.col("rejects").not_() & pl.col("ratio").is_finite())
    found = (
        octaves.group_by("implementation", "octave")
        .agg(
            pl.len().alias("judged"),
            pl.col("rejects").sum().alias("failed"),
            passed.median().alias("half"),
            passed.quantile(0.9).alias("most"),
            passed.max().alias("worst"),
        )
        .sort("octave")
    )
    points: dict[str, list[LengthBin]] = {}
    for row in found.iter_rows(named=True):
        points.setdefault(row["implementation"], []).append(_point(row, widest))
    return [Lengths(name, tuple(points[name])) for name in rows.implementations if name in points]


def _point(row: dict[str, Any], widest: int) -> LengthBin:
    ratios = {name: row[name] or 0.0 for name in ("half", "most", "worst")}
    depths = {f"y_{name}": _depth(ratio) for name, ratio in ratios.items()}
    return LengthBin(
        T=2 ** row["octave"],
        judged=row["judged"],
        failed=row["failed"],
        x=row["octave"] / widest,
        **ratios,
        **depths,
    )


def _depth(ratio: float) -> float:
    return min(1.0, max(0.0, math.log(max(ratio, FLOOR)) / math.log(FLOOR)))
