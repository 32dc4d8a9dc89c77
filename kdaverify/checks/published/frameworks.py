"""Frameworks and leaderboards, whose rules are of any tensor: torch.testing, KernelBench,
BackendBench, flashinfer-bench, and the correlation that tt-metal requires.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kdaverify.checks.published.rule import (
    PublishedRule,
    RuleResult,
    accepted,
    all_of,
    at_least,
    at_most,
    refused,
)
from kdaverify.checks.published.sample import Sample
from kdaverify.checks.status import RuleOutcome

WORST = "worst element / tolerance"


def within(sample: Sample, atol: float, rtol: float, relative_to: Tensor) -> RuleResult:
    """Every element within atol + rtol |relative_to|; what is not finite never is.

    Args:
        relative_to: the second operand of the publisher's comparison, not always the reference.
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


# Numbers of the publishers, by format or output: RULES below names the source of each.
RTOL: Final[Mapping[str, float]] = {"fp16": 1e-3, "bf16": 1.6e-2, "fp32": 1.3e-6, "fp64": 1e-7}
ATOL: Final[Mapping[str, float]] = {"fp16": 1e-5, "bf16": 1e-5, "fp32": 1e-5, "fp64": 1e-7}


def close(sample: Sample) -> RuleResult:
    """Math: |a - g| <= atol + rtol |g|."""
    return within(sample, ATOL[sample.stored], RTOL[sample.stored], sample.exact)


KERNELBENCH: Final[Mapping[str, float]] = {"fp32": 1e-4, "fp16": 1e-2, "bf16": 1e-2}
KERNELBENCH_HARD: Final[Mapping[str, float]] = {**KERNELBENCH, "bf16": 5e-2}


def allclose(sample: Sample, tolerances: Mapping[str, float]) -> RuleResult:
    """Math: |g - a| <= t + t |a|: the kernel's output is the second argument of torch.allclose."""
    t = tolerances[sample.dtype]
    return within(sample, t, t, sample.actual)


TOLERANCE: Final = 1e-2


def close_to_own(sample: Sample) -> RuleResult:
    """Math: |g - a| <= 1e-2 + 1e-2 |a|: the kernel's output is the `expected` of assert_close."""
    return within(sample, TOLERANCE, TOLERANCE, sample.actual)


MATCHED_WITHIN, EPS, MATCHED = 1e-2, 1e-8, 1.0


def matched(sample: Sample) -> RuleResult:
    """Math: no element with |a - g| > 1e-2 and |a - g| / (|g| + 1e-8) > 1e-2; inf or NaN fail."""
    if not sample.errors.finite:
        return refused("not finite")
    error = sample.errors.absolute
    if sample.errors.largest <= MATCHED_WITHIN:
        return all_of(at_least("matched", 1.0, MATCHED))
    off = (error > MATCHED_WITHIN) & (error / (sample.size + EPS) > MATCHED_WITHIN)
    return all_of(at_least("matched", 1 - float(off.sum()) / off.numel(), MATCHED))


LIMIT: Final = 0.999


def correlated(sample: Sample) -> RuleResult:
    """Math: Pearson's coefficient of a and g at least 0.999; what is not finite counts as 0, but
    not if all is NaN; a constant passes.
    """
    if bool(sample.actual.isnan().all()):
        return refused("all NaN")
    if not sample.errors.finite:
        actual = sample.actual.nan_to_num(0.0, 0.0, 0.0).flatten()
    else:
        actual = sample.actual.flatten()
    exact = sample.exact.flatten()
    if bool(actual.any()) != bool(exact.any()):
        return refused("one of the two is all zero")
    if torch.equal(actual, exact):
        return accepted("equal")
    a, g = actual - actual.mean(), exact - exact.mean()
    sizes = float(a.norm()) * float(g.norm())
    if sizes:
        return all_of(at_least("PCC", float(a @ g) / sizes, LIMIT))
    return accepted("a constant, whose correlation is masked")


RULES: Final = (
    PublishedRule(name="torch-testing",
                  source="torch 2.13 torch/testing/_comparison.py, assert_close without tolerances",
                  criterion="every element within 1e-5 + r |g|, r = 1.6e-2 in bf16, 1e-3 in fp16,"
                            " 1.3e-6 in fp32; fp64 1e-7 + 1e-7 |g|", judge=close,
                  empty=RuleOutcome.PASS),
    PublishedRule(name="kernelbench",
                  source="ScalingIntelligence/KernelBench src/kernelbench/eval.py @0d12226",
                  criterion="every element within t + t |a|, t = 1e-2 for 16-bit problems, 1e-4 for"
                            " fp32; a is the kernel's own",
                  judge=partial(allclose, tolerances=KERNELBENCH), formats=tuple(KERNELBENCH),
                  by="dtype", forward_only=True, empty=RuleOutcome.PASS),
    PublishedRule(name="kernelbench-hard",
                  source="Infatoshi/KernelBench-Hard problems/02_kda_cutlass/problem.yaml @bf3d6a8,"
                         " src/eval/correctness.py @f02faa4",
                  criterion="the same with t = 5e-2 for bf16",
                  judge=partial(allclose, tolerances=KERNELBENCH_HARD),
                  formats=tuple(KERNELBENCH_HARD), by="dtype", forward_only=True,
                  empty=RuleOutcome.PASS),
    PublishedRule(name="backendbench",
                  source="meta-pytorch/BackendBench BackendBench/eval.py @015f5cb",
                  criterion="every element within 1e-2 + 1e-2 |a| in every format; a is the"
                            " kernel's own", judge=close_to_own, empty=RuleOutcome.PASS),
    PublishedRule(name="flashinfer-bench",
                  source="flashinfer-ai/flashinfer-bench flashinfer_bench/bench/utils.py @00a1ec8,"
                         " config.py @1039e39",
                  criterion="no element off by more than 1e-2 both absolutely and relatively",
                  judge=matched, forward_only=True, empty=RuleOutcome.PASS),
    PublishedRule(name="tt-metal-pcc",
                  source="tenstorrent/tt-metal models/common/utility_functions.py @022e2c5,"
                         " comp_pcc at 0.999",
                  criterion="correlation with the reference at least 0.999", judge=correlated,
                  empty=RuleOutcome.PASS),
)  # fmt: skip
