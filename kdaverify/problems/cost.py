"""How long a problem takes to judge against certified values."""

from __future__ import annotations

from kdaverify.problems.problem import Problem

# Fitted to ball arithmetic in chunk form at 128 bits, chunks of 64 tokens, widths 1 to 128: within 15 % on one x86 core.
_SECONDS_PER_UNIT = 4e-8

DRAWN_LIMIT = {"fp64": 0.3, "fp32": 0.3, "bf16": 1.2, "fp16": 1.2}
"""Seconds of `cost` that a drawn problem may take: 16-bit ones are judged in float64, far faster than in balls, and may be larger."""


def seconds(*, tokens: int, HV: int, K: int, V: int) -> float:
    """Estimated seconds on one core to certify `tokens` tokens of `HV` heads at 128 bits."""
    return _SECONDS_PER_UNIT * tokens * HV * (K * V + 140 * K + 75 * V + 2350)


def cost(problem: Problem) -> float:
    """Estimated seconds on one core to certify the outputs of this problem in ball arithmetic."""
    return seconds(tokens=problem.B * problem.T, HV=problem.HV, K=problem.K, V=problem.V)
