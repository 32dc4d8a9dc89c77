"""How good a comparison is, in a letter."""

from __future__ import annotations

from typing import Literal, TypeAlias

Grade: TypeAlias = Literal["A", "B", "C", "F"]
"""A componentwise, B row-scaled, C norm only, F."""


def grade_of(ratios: dict[str, float]) -> Grade:
    """The finest measure that all statistics of it and of every coarser one meet: elements, rows, norms alone, not even these."""
    over = {name for name, ratio in ratios.items() if ratio > 1}
    if not over:
        return "A"
    if over <= {"median", "tail"}:
        return "B"
    return "F" if over & {"rms", "ceiling"} else "C"
