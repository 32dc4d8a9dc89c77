"""How long a problem takes to judge against certified values."""

from __future__ import annotations

from kdaverify.problems.problem import Problem

# Fitted to ball arithmetic in chunk form at 128 bits, chunks of 64 tokens, widths 1 to 128: within
# 15 % on one x86 core.
_SECONDS_PER_UNIT = 4e-8

DRAWN_LIMIT = {"fp64": 0.3, "fp32": 0.3, "bf16": 1.2, "fp16": 1.2}
"""Seconds of `cost` that a random problem may take: 16-bit ones are judged in float64, far faster
than in balls, and may be larger."""

GRADIENTS_LIMIT = {"fp64": 0.3, "fp32": 0.3, "bf16": 3.0, "fp16": 3.0}
"""And a named one whose gradients are tested: in balls, token by token, they take some forty times
as long as the outputs."""


def seconds(*, tokens: int, HV: int, K: int, V: int) -> float:
    """Estimated seconds on one core to certify `tokens` tokens of `HV` heads at 128 bits."""
    return _SECONDS_PER_UNIT * tokens * HV * (K * V + 140 * K + 75 * V + 2350)


def cost(problem: Problem) -> float:
    """Estimated seconds on one core to certify the outputs of this problem in ball arithmetic."""
    return seconds(tokens=problem.B * problem.T, HV=problem.HV, K=problem.K, V=problem.V)


def adjoint_seconds(*, tokens: int, HV: int, K: int, V: int, bits: int) -> float:
    """Estimated seconds on one core to certify gradients in balls of so many bits, which takes some
    forty times as long as the outputs.
    """
    return 40 * seconds(tokens=tokens, HV=HV, K=K, V=V) * max(1.0, bits / 128)


def gradients_are_quick(problem: Problem, *, accelerated: bool, balls: bool) -> bool:
    """Whether the gradients of a named problem are known within seconds.

    Args:
        accelerated: the implementation runs on an accelerator, and so do its conforming kernels
            where float64 is accurate enough.
        balls: whether the contract is too accurate for float64: that of products of fp32, whatever
            the format of the inputs.
    """
    return (accelerated and not balls) or cost(problem) <= GRADIENTS_LIMIT[
        "fp32" if balls else problem.dtype
    ]
