"""torch.testing.assert_close with its default tolerances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kdaverify.checks.published.rule import PublishedRule, RuleResult
from kdaverify.checks.published.sample import Sample
from kdaverify.checks.published.says import RuleOutcome
from kdaverify.checks.published.tolerance import within

RTOL: Final[Mapping[str, float]] = {"fp16": 1e-3, "bf16": 1.6e-2, "fp32": 1.3e-6, "fp64": 1e-7}
ATOL: Final[Mapping[str, float]] = {"fp16": 1e-5, "bf16": 1e-5, "fp32": 1e-5, "fp64": 1e-7}


def close(sample: Sample) -> RuleResult:
    """Math: |a - g| <= atol + rtol |g|."""
    return within(sample, ATOL[sample.stored], RTOL[sample.stored], sample.exact)


RULES: Final = (
    PublishedRule(
        name="torch-testing",
        source="torch 2.13 torch/testing/_comparison.py, assert_close without tolerances",
        asks=(
            "every element within 1e-5 + r |g|, r = 1.6e-2 in bf16, 1e-3 in fp16, 1.3e-6 in fp32;"
            " fp64 1e-7 + 1e-7 |g|"
        ),
        judge=close,
        empty=RuleOutcome.PASS,
    ),
)
