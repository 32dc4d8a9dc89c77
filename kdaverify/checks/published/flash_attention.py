"""FlashAttention: at most twice the largest error
of a PyTorch implementation of the same precision.
"""

from __future__ import annotations

from typing import Final

from kdaverify.checks.published.rule import PublishedRule, RuleResult, all_of, at_most
from kdaverify.checks.published.sample import Sample

FACTOR: Final = 2.0


def twice(sample: Sample) -> RuleResult:
    """Math: max |a - g| <= 2 max |b - g|."""
    return all_of(
        at_most("largest error", sample.errors.largest, FACTOR * sample.of_benchmark.largest)
    )


RULES: Final = (
    PublishedRule(
        name="flash-attention",
        source="Dao-AILab/flash-attention tests/test_flash_attn.py @008951f",
        asks="largest error at most twice the benchmark's",
        judge=twice,
        benchmark=True,
    ),
)
