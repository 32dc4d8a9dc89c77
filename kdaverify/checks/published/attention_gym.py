"""attention-gym: twice the largest error of a reference run
and a rounding of the largest output.
"""

from __future__ import annotations

from typing import Final

from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.published.rule import PublishedRule, RuleResult, all_of, at_most, refused
from kdaverify.checks.published.sample import Sample

FACTOR: Final = 2.0


def banded(sample: Sample) -> RuleResult:
    """Math: max |a - g| <= 2 (max |b - g| + eps max |g|),
    eps twice the unit roundoff of the problem's format; finite.
    """
    if not sample.errors.finite:
        return refused("not finite")
    band = 2 * FORMATS[sample.dtype].unit * float(sample.size.max())
    return all_of(
        at_most(
            "largest error", sample.errors.largest, FACTOR * (sample.of_benchmark.largest + band)
        )
    )


RULES: Final = (
    PublishedRule(
        name="attention-gym",
        source=(
            "meta-pytorch/attention-gym attn_gym/testing/kda.py @04d9961,"
            " assert_matches_low_precision_reference"
        ),
        asks=(
            "largest error at most 2 (the benchmark's + eps max |g|); there the benchmark is a"
            " recurrence in fp32"
        ),
        judge=banded,
        benchmark=True,
    ),
)
