"""Tolerances of single elements, atol + rtol |x|, as several publishers have them."""

from __future__ import annotations

from torch import Tensor

from kdaverify.checks.published.rule import RuleResult, all_of, at_most
from kdaverify.checks.published.sample import Sample

WORST = "worst element / tolerance"


def within(sample: Sample, atol: float, rtol: float, relative_to: Tensor) -> RuleResult:
    """Every element within atol + rtol |relative_to|; what is not finite never is.

    Args:
        relative_to: the second operand of the publisher's comparison, which is not always the
            reference.
    """
    if not sample.errors.finite:
        return all_of(at_most(WORST, float("inf"), 1.0))
    return all_of(
        at_most(
            WORST,
            float((sample.errors.absolute / relative_to.abs().mul_(rtol).add_(atol)).max()),
            1.0,
        )
    )
