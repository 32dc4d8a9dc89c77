"""Distribution of error / tolerance over the outputs, by implementation and format."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import polars as pl

from kdaverify.report.html.glance import AXIS
from kdaverify.report.html.rows import Rows

PER_OCTAVE: Final = 2
LEAST, MOST = -8, 4
"""Exponents of two at the ends; what is smaller or larger goes into the end bars."""


@dataclass(frozen=True)
class Bar:
    """Outputs with ratios in (`low`, `high`]; the outer bars take all beyond."""

    low: float
    high: float
    count: int
    share: float
    over: bool


@dataclass(frozen=True)
class Distribution:
    """One panel.

    Args:
        compared, over: outputs, and those over their tolerance.
        half, most: the ratio that half of them and that 99 of 100 stay below.
    """

    implementation: str
    dtype: str
    compared: int
    over: int
    half: float
    most: float
    bars: tuple[Bar, ...]


def distributions(rows: Rows) -> list[Distribution]:
    """Panels by implementation, then format."""
    compared = rows.counted.filter(pl.col("ratio").is_not_null() & pl.col("ratio").is_not_nan())
    bins = (
        ((pl.col("ratio").log(2) * PER_OCTAVE).ceil() - 1)
        .clip(LEAST * PER_OCTAVE, MOST * PER_OCTAVE - 1)
        .cast(pl.Int64)
    )
    counts = (
        compared.with_columns(bins.alias("bin")).group_by("implementation", "dtype", "bin").len()
    )
    by_panel: dict[tuple[str, str], dict[int, int]] = {}
    for name, dtype, place, count in counts.iter_rows():
        by_panel.setdefault((name, dtype), {})[place] = count
    totals = compared.group_by("implementation", "dtype").agg(
        pl.len().alias("compared"),
        (pl.col("ratio") > 1).sum().alias("over"),
        pl.col("ratio").median().alias("half"),
        pl.col("ratio").quantile(0.99).alias("most"),
    )
    panels = [
        Distribution(**row, bars=_bars(by_panel[row["implementation"], row["dtype"]]))
        for row in totals.iter_rows(named=True)
    ]
    order = {name: place for place, name in enumerate(rows.implementations)}
    return sorted(
        panels,
        key=lambda panel: (
            order[panel.implementation],
            (*AXIS, panel.dtype).index(panel.dtype),
            panel.dtype,
        ),
    )


def _bars(counts: dict[int, int]) -> tuple[Bar, ...]:
    tallest = max(counts.values())
    places = range(LEAST * PER_OCTAVE, MOST * PER_OCTAVE)
    return tuple(
        Bar(
            2 ** (place / PER_OCTAVE),
            2 ** ((place + 1) / PER_OCTAVE),
            (n := counts.get(place, 0)),
            math.sqrt(n / tallest),
            place >= 0,
        )
        for place in places
    )
