"""Exact binomial intervals."""

from __future__ import annotations

import math
from collections.abc import Callable


def interval(hits: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """Two-sided limits of a probability of which `trials` showed `hits`.
    Source: Clopper and Pearson, 1934.
    """
    if not trials:
        return 0.0, 1.0
    tail = (1 - confidence) / 2
    low = 0.0 if not hits else _solve(lambda p: 1 - _at_most(hits - 1, trials, p), tail)
    high = 1.0 if hits == trials else _solve(lambda p: -_at_most(hits, trials, p), -tail)
    return low, high


def upper(hits: int, trials: int, confidence: float = 0.95) -> float:
    """One-sided upper limit."""
    return interval(hits, trials, 2 * confidence - 1)[1]


def _at_most(hits: int, trials: int, p: float) -> float:
    if p in (0.0, 1.0):
        return float(p == 0.0 or hits >= trials)
    log = [
        math.lgamma(trials + 1) - math.lgamma(k + 1) - math.lgamma(trials - k + 1)
        for k in range(hits + 1)
    ]
    return sum(
        math.exp(size + k * math.log(p) + (trials - k) * math.log1p(-p))
        for k, size in enumerate(log)
    )


def _solve(rising: Callable[[float], float], wanted: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return (low + high) / 2
