"""Ascend's precision standards for operators: ecosystem (single benchmark, mixed tolerance),
commercial (dual benchmark, L0 to L2), and the double benchmark of its test kit.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final, NamedTuple

import torch
from torch import Tensor

from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.published.rule import (
    PublishedRule,
    RuleResult,
    accepted,
    all_of,
    at_least,
    at_most,
    below,
    refused,
)
from kdaverify.checks.published.sample import TINY, Errors, Sample
from kdaverify.checks.status import RuleOutcome

FOLDER: Final = "hicann/opbase docs/zh/ops_precision_standard"
# Numbers of the publishers, by format or output: RULES below names the source of each.
THRESHOLD: Final[Mapping[str, float]] = {"fp16": 2.0**-10, "bf16": 2.0**-7, "fp32": 2.0**-13}
MIXED_LARGEST: Final[Mapping[str, float]] = {"fp16": 0.1, "bf16": 0.1, "fp32": 0.01}
MIXED_ULPS: Final = 32
MATCHED: Final = 0.99
SMALL: Final[Mapping[str, tuple[float, float]]] = {
    "fp16": (2.0**-11, 2.0**-16),
    "bf16": (2.0**-8, 2.0**-16),
    "fp32": (2.0**-14, 2.0**-30),
}
"""Below which exact value an element is small, and the error from which it counts."""
SMALL_RATIO: Final = 2.0


class Level(NamedTuple):
    """The largest ratios of a kernel's error to the benchmark's."""

    mare: float
    mere: float
    rmse: float


LEVELS: Final[Mapping[str, Level]] = {
    "L0": Level(10, 2, 2),
    "L1": Level(5, 1.5, 1.5),
    "L2": Level(2, 1.2, 1.2),
}


def single(sample: Sample) -> RuleResult:
    """Math: mean relative error below the threshold, the largest below ten of them."""
    errors, threshold = sample.errors.relative, THRESHOLD[sample.stored]
    return all_of(
        below("MERE", float(errors.mean()), threshold),
        below("MARE", float(errors.max()), 10 * threshold),
    )


def mixed(sample: Sample) -> RuleResult:
    """Math: |a - g| <= t + t |g| for 99 % of the elements; for all of them |a - g| <= the limit, or
    32 ulps of g.
    """
    if not sample.errors.finite:
        return refused("not finite where the exact value is")
    error, t, limit = sample.errors.absolute, THRESHOLD[sample.stored], MIXED_LARGEST[sample.stored]
    matched = at_least(
        "matched", float((error <= t + t * sample.size).sum()) / error.numel(), MATCHED
    )
    if sample.errors.largest <= limit:
        return all_of(matched, at_most("largest error", sample.errors.largest, limit))
    limits = (MIXED_ULPS * ulp(sample.exact, sample.stored)).clamp(min=limit)
    return all_of(matched, at_most("largest error / its limit", float((error / limits).max()), 1.0))


def ulp(x: Tensor, fmt: str) -> Tensor:
    """The distance of neighbouring numbers of a format at `x`."""
    form = FORMATS[fmt]
    _, exponent = torch.frexp(x.abs().clamp(min=form.min_normal))
    return torch.ldexp(torch.ones_like(x), exponent - form.precision)


class Compared(NamedTuple):
    """What a dual benchmark compares: MARE, MERE, RMSE, ErrorCount of small values."""

    mare: float
    mere: float
    rmse: float
    errors: float


def dual(sample: Sample, level: Level) -> RuleResult:
    """Math: of normal elements, ratios of MARE, MERE and RMSE to (the benchmark's + 1e-7); of small
    ones, ErrorCount / max(its, 1) <= 2.

    What is not finite is right where the benchmark has the same, and takes no part in the figures.
    """
    figures = sample.once(_compared)
    if figures is None:
        return refused("not finite where exact value and benchmark are")
    ours, theirs = figures
    return all_of(
        at_most("MARE ratio", ours.mare / (theirs.mare + TINY), level.mare),
        at_most("MERE ratio", ours.mere / (theirs.mere + TINY), level.mere),
        at_most("RMSE ratio", ours.rmse / (theirs.rmse + TINY), level.rmse),
        at_most("small-value ErrorCount ratio", ours.errors / max(theirs.errors, 1.0), SMALL_RATIO),
    )


def _compared(sample: Sample) -> tuple[Compared, Compared] | None:
    """The kernel's figures and the benchmark's; None where the kernel alone is not finite."""
    ours, theirs = sample.errors, sample.of_benchmark
    compared = torch.isfinite(ours.signed) & torch.isfinite(theirs.signed)
    agreed = (
        torch.isfinite(ours.found)
        | (ours.found == theirs.found)
        | (ours.found.isnan() & theirs.found.isnan())
    )
    if not bool(agreed.all()):
        return None
    threshold, error = SMALL[sample.stored]
    normal = sample.size >= threshold
    small, normal = compared & ~normal, compared & normal
    return _figures(ours, normal, small, error), _figures(theirs, normal, small, error)


def _figures(errors: Errors, normal: Tensor, small: Tensor, error: float) -> Compared:
    """0 of no elements."""
    count = max(float(normal.sum()), 1.0)
    ratios = torch.where(normal, errors.relative, 0.0)
    squares = torch.where(normal, errors.absolute, 0.0).square_().sum()
    wrong = float((small & (errors.absolute > error)).sum())
    return Compared(
        float(ratios.max()), float(ratios.sum()) / count, (float(squares) / count) ** 0.5, wrong
    )


def _level(name: str, level: Level) -> PublishedRule:
    return PublishedRule(
        name=f"ascend-{name}",
        source=f"{FOLDER}/commercial_standard.md @3e62966",
        criterion=(
            f"dual benchmark {name}: ratios to the benchmark of MARE <= {level.mare:g}, MERE <="
            f" {level.mere:g}, RMSE <= {level.rmse:g}; of small values, errors counted <= 2 times"
            " the benchmark's"
        ),
        judge=partial(dual, level=level),
        formats=tuple(SMALL),
        benchmark=True,
    )


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
    PublishedRule(name="ascend-single", source=f"{FOLDER}/experimental_standard.md @3e62966",
                  criterion="single benchmark: MERE < t and MARE < 10 t, t = 2^-7 in bf16, 2^-10 in"
                            " fp16, 2^-13 in fp32", judge=single, formats=tuple(THRESHOLD)),
    PublishedRule(name="ascend-mixed", source=f"{FOLDER}/mixed_tolerance_standard.md @233ee24c",
                  criterion="mixed tolerance: 99 % within t + t |g|, all within 0.1 (fp32: 0.01) or"
                            " 32 ulps; t as in ascend-single", judge=mixed,
                  formats=tuple(THRESHOLD)),
    *(_level(name, level) for name, level in LEVELS.items()),
    PublishedRule(name="ascend-atk",
                  source="Ascend ATK cv_fused_double_benchmark, copied in DrivingSDK"
                         " tests/torch/cv_fused_double_benchmark_compare.py",
                  criterion="ratios to max(the benchmark's, 2^-8 in bf16) of the largest relative"
                            " error <= 10, mean <= 2, rms <= 2; error balance <= 2^-7",
                  judge=double, formats=tuple(FLOOR), benchmark=True, empty=RuleOutcome.PASS),
)  # fmt: skip
