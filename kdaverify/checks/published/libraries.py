"""Libraries of kernels: flash-linear-attention holds the error ratio of a whole tensor against a
limit; FlashAttention and attention-gym hold the largest error against that of a run of the same
precision.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.published.rule import (
    PublishedRule,
    RuleResult,
    accepted,
    all_of,
    at_most,
    below,
    not_applicable,
    refused,
)
from kdaverify.checks.published.sample import Sample

# Numbers of the publishers, by format or output: RULES below names the source of each.
DENSE: Final[Mapping[str, float]] = {
    **dict.fromkeys(("o", "final_state"), 0.005),
    **dict.fromkeys(("dq", "dk", "dv", "d_initial_state"), 0.008),
    **dict.fromkeys(("dg", "dbeta"), 0.02),
}
PACKED: Final[Mapping[str, float]] = {
    **DENSE,
    **dict.fromkeys(("dq", "dv", "d_initial_state"), 0.007),
    **dict.fromkeys(("dg", "dbeta"), 0.015),
}
ABSOLUTE: Final = 1e-6
CI_RATIO, CI_ABSOLUTE = 0.01, 0.3


def error_ratio(sample: Sample, *, ci: bool) -> RuleResult:
    """Math: rms(g - a) / (rms(g) + 1e-8) < limit of the tensor; or max |g - a| <= 1e-6. NaN fails.

    In CI a ratio below 0.01, or no element off by more than 0.3, only warns.
    """
    limit = (PACKED if sample.packed else DENSE).get(sample.output)
    if limit is None:
        return not_applicable(f"no limit for {sample.output}")
    errors = sample.errors
    if bool(sample.actual.isnan().any()):
        return refused("NaN")
    if errors.largest <= ABSOLUTE:
        return accepted("no element off by more than 1e-6")
    ratio = errors.rms / (float(sample.exact.square().mean().sqrt()) + 1e-8)
    if ci and (ratio < CI_RATIO or errors.largest <= CI_ABSOLUTE):
        return accepted("a warning at most")
    return all_of(below("error ratio", ratio, limit))


_SOURCE: Final = (
    "fla-org/flash-linear-attention 0.6.0 fla/utils/testing.py, tests/ops/test_kda.py @bc3b101d"
)
FACTOR: Final = 2.0


def twice(sample: Sample) -> RuleResult:
    """Math: max |a - g| <= 2 max |b - g|."""
    return all_of(
        at_most("largest error", sample.errors.largest, FACTOR * sample.of_benchmark.largest)
    )


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
    PublishedRule(name="fla", source=_SOURCE,
                  criterion="rms error / rms below 0.005 for o and S_T, 0.007 or 0.008 for dq, dk,"
                            " dv, dS_0, 0.015 or 0.02 for dg and dbeta",
                  judge=partial(error_ratio, ci=False)),
    PublishedRule(name="fla-ci", source=_SOURCE,
                  criterion="with FLA_CI_ENV=1: the same, but nothing below 0.01, and nothing where"
                            " no element is off by more than 0.3",
                  judge=partial(error_ratio, ci=True)),
    PublishedRule(name="flash-attention",
                  source="Dao-AILab/flash-attention tests/test_flash_attn.py @008951f",
                  criterion="largest error at most twice the benchmark's", judge=twice,
                  benchmark=True),
    PublishedRule(name="attention-gym",
                  source="meta-pytorch/attention-gym attn_gym/testing/kda.py @04d9961,"
                         " assert_matches_low_precision_reference",
                  criterion="largest error at most 2 (the benchmark's + eps max |g|); there the"
                            " benchmark is a recurrence in fp32", judge=banded, benchmark=True),
)  # fmt: skip
