"""BackendBench: torch.testing.assert_close at 1e-2 in every format,
relative to the kernel's own output.
"""

from __future__ import annotations

from typing import Final

from kdaverify.checks.published.rule import PublishedRule, RuleResult
from kdaverify.checks.published.sample import Sample
from kdaverify.checks.published.says import RuleOutcome
from kdaverify.checks.published.tolerance import within

TOLERANCE: Final = 1e-2


def close(sample: Sample) -> RuleResult:
    """Math: |g - a| <= 1e-2 + 1e-2 |a|: the kernel's output is the `expected` of assert_close."""
    return within(sample, TOLERANCE, TOLERANCE, sample.actual)


RULES: Final = (
    PublishedRule(
        name="backendbench",
        source="meta-pytorch/BackendBench BackendBench/eval.py @015f5cb",
        asks="every element within 1e-2 + 1e-2 |a|, whatever the format; a is the kernel's own",
        judge=close,
        empty=RuleOutcome.PASS,
    ),
)
