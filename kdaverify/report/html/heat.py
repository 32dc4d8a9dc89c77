"""A map of the worst error / tolerance over key regime (how coherent keys are) and gate regime."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import polars as pl

from kdaverify.operator import DEFAULT, operator_named
from kdaverify.report.html.rows import Rows

SHADES: Final = (0.125, 0.25, 0.5, 0.75, 1.0)
"""Upper ends of the shades; what is beyond the last is wrong."""


@dataclass(frozen=True)
class Spot:
    """One key regime under one gate regime.

    Args:
        worst: the largest ratio; None where nothing was compared.
        judged, failed: outputs.
        shade: place in SHADES; its length where something failed.
    """

    worst: float | None
    judged: int
    failed: int
    shade: int


@dataclass(frozen=True)
class Heat:
    """Rows are gates in the order of the regimes, columns keys from orthogonal to parallel; None
    where nothing was tested.
    """

    implementation: str
    keys: tuple[str, ...]
    gates: tuple[str, ...]
    spots: tuple[tuple[Spot | None, ...], ...]


def heats(rows: Rows) -> list[Heat]:
    """A map for every implementation."""
    tested = rows.counted.filter(pl.col("judged") & pl.col("key").is_not_null())
    figures = (
        pl.col("ratio").max().alias("worst"),
        pl.len().alias("judged"),
        pl.col("rejects").sum().alias("failed"),
    )
    found = tested.group_by("implementation", "regime", "key").agg(figures)
    spots = {
        (name, gate, key): _spot(*reported) for name, gate, key, *reported in found.iter_rows()
    }
    levels = operator_named(DEFAULT).levels
    gates, keys = (
        _known({place[axis] for place in spots}, levels(field))
        for axis, field in ((1, "gate"), (2, "key"))
    )
    return [
        Heat(
            name,
            keys,
            gates,
            tuple(tuple(spots.get((name, gate, key)) for key in keys) for gate in gates),
        )
        for name in rows.implementations
        if any(own == name for own, _, _ in spots)
    ]


def _known(seen: set[str], order: tuple[str, ...]) -> tuple[str, ...]:
    return (
        *(name for name in dict.fromkeys(order) if name in seen),
        *sorted(seen.difference(order)),
    )


def _spot(worst: float | None, judged: int, failed: int) -> Spot:
    ratio = 0.0 if worst is None or math.isnan(worst) else worst
    if failed:
        shade = len(SHADES)
    else:
        shade = next((place for place, end in enumerate(SHADES) if ratio <= end), len(SHADES) - 1)
    return Spot(worst, judged, failed, shade)
