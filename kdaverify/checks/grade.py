"""How good a comparison is, as a letter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

Grade: TypeAlias = Literal["A", "B", "C", "F"]
"""A componentwise, B row-scaled, C norm only, F."""
MEANING: Final[Mapping[str, str]] = {
    "A": "every statistic within tolerance",
    "B": "only relative errors of single elements over tolerance",
    "C": "rms within tolerance, rows or elements over it",
    "F": "rms over tolerance, an element above its proven bound, or no valid output",
}
"""What a letter says of an output, in one line."""


def grade_of(ratios: dict[str, float]) -> Grade:
    """The finest measure whose statistics, and those of every coarser one, are within tolerance."""
    over = {name for name, ratio in ratios.items() if ratio > 1}
    if not over:
        return "A"
    if over <= {"median", "tail"}:
        return "B"
    return "F" if over & {"rms", "ceiling"} else "C"
