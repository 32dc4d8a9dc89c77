"""flashinfer-bench: an element is wrong where both its absolute and its relative error are."""

from __future__ import annotations

from typing import Final

from kdaverify.checks.published.rule import PublishedRule, RuleResult, all_of, at_least, refused
from kdaverify.checks.published.sample import Sample
from kdaverify.checks.published.says import RuleOutcome

TOLERANCE, EPS, MATCHED = 1e-2, 1e-8, 1.0


def matched(sample: Sample) -> RuleResult:
    """Math: no element with |a - g| > 1e-2 and |a - g| / (|g| + 1e-8) > 1e-2; inf or NaN fail."""
    if not sample.errors.finite:
        return refused("not finite")
    error = sample.errors.absolute
    if sample.errors.largest <= TOLERANCE:
        return all_of(at_least("matched", 1.0, MATCHED))
    off = (error > TOLERANCE) & (error / (sample.size + EPS) > TOLERANCE)
    return all_of(at_least("matched", 1 - float(off.sum()) / off.numel(), MATCHED))


RULES: Final = (
    PublishedRule(
        name="flashinfer-bench",
        source=(
            "flashinfer-ai/flashinfer-bench flashinfer_bench/bench/utils.py @00a1ec8, config.py"
            " @1039e39"
        ),
        asks="no element off by more than 1e-2 both absolutely and relatively",
        judge=matched,
        forward_only=True,
        empty=RuleOutcome.PASS,
    ),
)
