"""A lower limit of the median of a population, from a sample of it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache


def median_limit(values: Sequence[float], confidence: float) -> float:
    """The one-sided lower limit of the median by the percentile bootstrap, exactly.

    Math: the median of a resample is at most the k-th smallest value with probability P(Binomial(n,
    k / n) >= ceil(n / 2)); the limit is the smallest value where that reaches 1 - confidence. No
    resample is made.

    Source: Maritz and Jarrett, A note on estimating the variance of the sample median, 1978; Efron,
    1979.
    """
    return sorted(values)[_rank(len(values), confidence)]


@cache
def _rank(n: int, confidence: float) -> int:
    """The place of the limit among n values in order."""
    half = math.ceil(n / 2)

    def reached(k: int) -> float:
        # Beyond 20 standard deviations nothing is left to add.
        last = min(n, math.ceil(k + 10 * math.sqrt(n)))
        return sum(math.exp(_log_binomial(n, j, k / n)) for j in range(half, last + 1))

    # Where none of the others reaches it, the largest value does.
    return bisect_left(range(1, n), 1 - confidence, key=reached)


def _log_binomial(n: int, j: int, p: float) -> float:
    return (
        math.lgamma(n + 1)
        - math.lgamma(j + 1)
        - math.lgamma(n - j + 1)
        + j * math.log(p)
        + (n - j) * math.log1p(-p)
    )
