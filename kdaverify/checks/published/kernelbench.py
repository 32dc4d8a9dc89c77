"""KernelBench, and KernelBench-Hard's problem on KDA: torch.allclose at one tolerance, relative to
the kernel's own output.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from kdaverify.checks.published.rule import PublishedRule, RuleResult
from kdaverify.checks.published.sample import Sample
from kdaverify.checks.published.says import RuleOutcome
from kdaverify.checks.published.tolerance import within

TOLERANCE: Final[Mapping[str, float]] = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 1e-2}
HARD: Final[Mapping[str, float]] = {**TOLERANCE, "bf16": 5e-2}


def allclose(sample: Sample, tolerances: Mapping[str, float]) -> RuleResult:
    """Math: |g - a| <= t + t |a|: the kernel's output is the second argument of torch.allclose."""
    t = tolerances[sample.dtype]
    return within(sample, t, t, sample.actual)


RULES: Final = (
    PublishedRule(
        name="kernelbench",
        source="ScalingIntelligence/KernelBench src/kernelbench/eval.py @0d12226",
        asks=(
            "every element within t + t |a|, t = 1e-2 for 16-bit problems, 1e-4 for fp32; a is the"
            " kernel's own"
        ),
        judge=partial(allclose, tolerances=TOLERANCE),
        formats=tuple(TOLERANCE),
        by="dtype",
        forward_only=True,
        empty=RuleOutcome.PASS,
    ),
    PublishedRule(
        name="kernelbench-hard",
        source=(
            "Infatoshi/KernelBench-Hard problems/02_kda_cutlass/problem.yaml @bf3d6a8,"
            " src/eval/correctness.py @f02faa4"
        ),
        asks="the same with t = 5e-2 for bf16",
        judge=partial(allclose, tolerances=HARD),
        formats=tuple(HARD),
        by="dtype",
        forward_only=True,
        empty=RuleOutcome.PASS,
    ),
)
