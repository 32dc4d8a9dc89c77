"""The double benchmark of Ascend's test kit:
ratios to the benchmark with a floor, and the balance of the errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kdaverify.checks.published.rule import (
    PublishedRule,
    RuleResult,
    accepted,
    all_of,
    at_most,
    refused,
)
from kdaverify.checks.published.sample import Sample
from kdaverify.checks.published.says import RuleOutcome

FLOOR: Final[Mapping[str, float]] = {"fp16": 2.0**-11, "bf16": 2.0**-8, "fp32": 2.0**-14}
BALANCE: Final[Mapping[str, float]] = {"fp16": 2.0**-10, "bf16": 2.0**-7, "fp32": 2.0**-14}
LARGEST, MEAN, RMS = 10.0, 2.0, 2.0


def double(sample: Sample) -> RuleResult:
    """Math: err / max(err of the benchmark, floor) <= 10, 2, 2 for the largest and the mean
    relative error and for the rms.

    The balance |mean((a - g) / max(|g|, 1))| has a limit of its own. A benchmark that is not finite
    passes everything; a kernel that is not fails.
    """
    ours, theirs = sample.errors, sample.of_benchmark
    if not theirs.finite:
        return accepted("the benchmark is not finite")
    if not ours.finite:
        return refused("not finite where the benchmark is")
    own, other, floor = ours.relative, theirs.relative, FLOOR[sample.stored]
    balance = float((ours.signed / sample.size.clamp(min=1.0)).mean())
    return all_of(
        at_most(
            "largest relative error ratio",
            float(own.max()) / max(float(other.max()), floor),
            LARGEST,
        ),
        at_most(
            "mean relative error ratio", float(own.mean()) / max(float(other.mean()), floor), MEAN
        ),
        at_most("rms error ratio", ours.rms / max(theirs.rms, floor), RMS),
        at_most("error balance", abs(balance), BALANCE[sample.stored]),
    )


RULES: Final = (
    PublishedRule(
        name="ascend-atk",
        source=(
            "Ascend ATK cv_fused_double_benchmark, copied in DrivingSDK"
            " tests/torch/cv_fused_double_benchmark_compare.py"
        ),
        asks=(
            "ratios to max(the benchmark's, 2^-8 in bf16) of the largest relative error <= 10, mean"
            " <= 2, rms <= 2; error balance <= 2^-7"
        ),
        judge=double,
        formats=tuple(FLOOR),
        benchmark=True,
        empty=RuleOutcome.PASS,
    ),
)
