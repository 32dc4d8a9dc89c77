"""The rms of an error where nothing is left to luck: many roundings, and kernels that round as their contract says agree."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import Final

# Real kernels come within this factor of the worst kernel that rounds to nearest, beside what luck explains.
FACTOR: Final = 1.1
# What luck explains, in deviations of the draws: one further draw exceeds their mean by so much once in a thousand times, as 8 of them
# give the deviation (Student's t with 7 degrees of freedom).
DEVIATIONS: Final = 5.0
# Rounding to nearest was lucky where roundings drawn at random come to more than this multiple of it.
AGREEMENT: Final = 1.25


def sharp_rms(rounded: Sequence[float], drawn: Sequence[float], floor: float) -> float:
    """What the rms error may be, by the kernels that round to nearest alone.

    Math: 1.1 (1 + 5 deviation / mean of the draws) max(worst of the rounded, floor), where the mean of the draws is above 0 and
    at most 1.25 times that worst; inf elsewhere. At a deviation of 1 %, as of some thousands of elements, that is 1.16 times the worst.

    Args:
        rounded: rms errors of the kernels that round to nearest.
        drawn: of the draws of the noise.
        floor: below which nothing is asked.
    """
    worst, typical = max(rounded, default=0.0), mean(drawn)
    if len(drawn) < 2 or not 0 < typical <= AGREEMENT * worst:
        return math.inf
    return FACTOR * (1 + DEVIATIONS * stdev(drawn) / typical) * max(worst, floor)
