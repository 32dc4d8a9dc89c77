"""How long a problem takes to judge against certified values."""

from __future__ import annotations

from kdaverify.problems.problem import Problem

# Ball arithmetic needs about 0.08 s for one head and one chunk of 64 tokens at K = V = 128. Per token the chunk form does
# 4 K V + C (3 K + 2 V) + C^2 / 3 multiplications with C = 64, which (K + 32) (V + 32) follows within a third.
_MARGIN = 32
_SECONDS_PER_UNIT = 0.08 / (64 * (128 + _MARGIN) ** 2)

DRAWN_LIMIT = {"fp64": 0.3, "fp32": 0.3, "bf16": 1.2, "fp16": 1.2}
"""Seconds of `cost` that a drawn problem may take: 16-bit ones are judged in float64, far faster than in balls, and may be larger."""


def seconds(*, tokens: int, HV: int, K: int, V: int) -> float:
    """Estimated seconds on one core to certify `tokens` tokens of `HV` heads."""
    return _SECONDS_PER_UNIT * tokens * HV * (K + _MARGIN) * (V + _MARGIN)


def cost(problem: Problem) -> float:
    """Estimated seconds on one core to certify the outputs of this problem in ball arithmetic."""
    return seconds(tokens=problem.B * problem.T, HV=problem.HV, K=problem.K, V=problem.V)
