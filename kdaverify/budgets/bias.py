"""One-sided errors: the exact output's share of the error, which norms hardly show."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from kdaverify.budgets.constants import BIAS_DEVIATIONS, SMALLEST_BIAS


def biases(errors: Tensor, exact: Tensor) -> list[float]:
    """By which fraction of itself each of several outputs is too large.

    Math: b = |<error, exact>| / <exact, exact>; independent roundings of relative size u in n
    elements leave about u / sqrt(n) of it, an output scaled by 1 + b all of b.

    Args:
        errors: [outputs, elements].
        exact: [elements].
    """
    size = exact.square().sum()
    return ((errors @ exact).abs() / size).tolist() if size else [0.0] * len(errors)


def allowed_bias(
    rounded: Sequence[float], drawn: Sequence[float], rounding: float, least: float, missed: float
) -> float:
    """The worst round-to-nearest kernel, and what unbiased samples happen to have.

    Math: max(2^-12, worst of the rounded + 5 rms of the samples, 4 `rounding`, `least`); inf where
    `missed` is 1 or more: of an output that conforming kernels are wrong by its own size nothing
    can lean, and what their few roundings leave of it has no typical bias.

    Args:
        rounded, drawn: biases of the reference ensemble.
        rounding: the deviation that rounding the exact result once has.
        least: what underflow and sums that cancel may cost, relative to the output.
        missed: the worst rms error of the reference ensemble, likewise.
    """
    if missed >= 1:
        return math.inf
    deviation = math.hypot(*drawn) / math.sqrt(len(drawn))
    found = max(rounded, default=0.0) + BIAS_DEVIATIONS * deviation
    return max(SMALLEST_BIAS, found, 4 * rounding, least) if math.isfinite(found) else math.inf
