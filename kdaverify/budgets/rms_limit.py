"""How far an error's rms may lie above conforming kernels', averaged over roundings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from kdaverify.budgets.constants import (
    A_HANDFUL,
    FAVOURABLE,
    MANY,
    SHARP_DEVIATIONS,
    SHARP_DEVIATIONS_OF_MANY,
    SHARP_FACTOR,
)


def sharp_rms(rounded: Sequence[float], drawn: Sequence[float], floor: float) -> float:
    """What the rms error may be, by a typical sample instead of the worst one.

    Math: 1.1 (1 + n deviation / mean of the samples) max(worst of the rounded, mean of the samples,
    floor) with n = 4, or 3 where the samples are many. At a deviation of 1 %, as of some thousands
    of elements, that is 1.14 times the worst kernel. inf where the samples are exact or overflow,
    which are no estimate then, and where they scatter as those of a handful of roundings do.

    Args:
        rounded: rms errors of the kernels that round to nearest.
        drawn: of the stochastic-rounding samples.
        floor: below which nothing is tested.
    """
    typical = fmean(drawn)
    if not typical or not math.isfinite(typical):
        return math.inf
    deviation = math.hypot(*(x - typical for x in drawn)) / math.sqrt(max(1, len(drawn) - 1))
    if deviation > A_HANDFUL * typical:
        return math.inf
    deviations = SHARP_DEVIATIONS_OF_MANY if len(drawn) >= MANY else SHARP_DEVIATIONS
    return SHARP_FACTOR * (1 + deviations * deviation / typical) * max(*rounded, typical, floor)


def were_favourable(rounded: Sequence[float], drawn: Sequence[float]) -> bool:
    """Whether all kernels that round to nearest were, so that no other need be as good."""
    return fmean(drawn) > FAVOURABLE * max(rounded)
