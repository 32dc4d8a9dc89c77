"""How far the rms of an error may lie above that of the conforming kernels,
where it averages over many roundings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Final

# Real kernels' rms comes within this factor of the ensemble's, beside sampling variation: on an
# H200 within 2 % for o and final_state of FLA (bf16, fp16, fp32; 4,096 and 16,384 tokens) and cuDNN
# (bf16; 4,096 tokens). Gradients of a few regimes are further off (reports/calibration.md).
FACTOR: Final = 1.1
# Sampling variation, in standard deviations of the samples: one further sample lies so far above
# their mean once in 400 times, as 8 of them give the deviation (Student's t with 7 degrees of
# freedom), or as 32 do.
DEVIATIONS: Final = 4.0
MANY, DEVIATIONS_OF_MANY = 32, 3.0
# Draws that scatter by more than this share of their mean hang on a handful of roundings, which do
# not average: luck has other odds there.
A_HANDFUL: Final = 0.25
# Rounding to nearest has unusually small errors where stochastic roundings come to more than this
# multiple of it on average.
FAVOURABLE: Final = 1.25


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
    deviations = DEVIATIONS_OF_MANY if len(drawn) >= MANY else DEVIATIONS
    return FACTOR * (1 + deviations * deviation / typical) * max(*rounded, typical, floor)


def were_favourable(rounded: Sequence[float], drawn: Sequence[float]) -> bool:
    """Whether the kernels that round to nearest were, all of them,
    so that no other need be as good.
    """
    return fmean(drawn) > FAVOURABLE * max(rounded)
