"""A published rule, and its result for one output."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from kdaverify.checks.published.sample import Sample
from kdaverify.checks.status import RuleOutcome


@dataclass(frozen=True)
class RuleResult:
    """The result of one rule for one output.

    Args:
        says: its verdict.
        statistic: what it measured, the criterion that was missed by most or came nearest; why
            nothing was, where it does not apply.
        value, limit: of that statistic; None where there is no figure.
    """

    says: RuleOutcome
    statistic: str
    value: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Criterion:
    """One thing that a rule tests.

    Args:
        met: whether it is; NaN never meets a limit.
        excess: above 1 as far as it is missed, in parts of the limit.
    """

    statistic: str
    value: float
    limit: float
    met: bool
    excess: float


def at_most(statistic: str, value: float, limit: float) -> Criterion:
    return Criterion(statistic, value, limit, value <= limit, _parts(value, limit))


def below(statistic: str, value: float, limit: float) -> Criterion:
    return Criterion(statistic, value, limit, value < limit, _parts(value, limit))


def at_least(statistic: str, value: float, limit: float) -> Criterion:
    return Criterion(
        statistic, value, limit, value >= limit, _parts(limit, value) if value > 0 else math.inf
    )


def all_of(*criteria: Criterion) -> RuleResult:
    """Passes where every criterion is met; reports the largest excess, or the nearest."""
    reported = max(criteria, key=lambda criterion: (not criterion.met, criterion.excess))
    return RuleResult(
        RuleOutcome.PASS if all(criterion.met for criterion in criteria) else RuleOutcome.FAIL,
        reported.statistic,
        reported.value,
        reported.limit,
    )


def refused(why: str) -> RuleResult:
    """Fails without a figure."""
    return RuleResult(RuleOutcome.FAIL, why)


def accepted(why: str) -> RuleResult:
    """Passes without a figure."""
    return RuleResult(RuleOutcome.PASS, why)


def not_applicable(why: str) -> RuleResult:
    return RuleResult(RuleOutcome.NOT_APPLICABLE, why)


@dataclass(frozen=True)
class PublishedRule:
    """A rule as published, with the exact value wherever it has a more precise reference.

    Args:
        name: how records name it.
        source: where it is published, at which commit or version.
        criterion: what it tests, in one line.
        judge: says so of an output that has elements, and a benchmark where `benchmark` is set.
        formats: those it has limits for.
        by: whether they are limits for the output's own format, or for the problem's.
        benchmark: whether it holds the error against that of another run of the same precision.
        forward_only: whether it is published for outputs of the forward pass alone.
        empty: its result for an output without elements, where it applies.
    """

    name: str
    source: str
    criterion: str
    judge: Callable[[Sample], RuleResult]
    formats: tuple[str, ...] = ("fp64", "fp32", "bf16", "fp16")
    by: Literal["stored", "dtype"] = "stored"
    benchmark: bool = False
    forward_only: bool = False
    empty: RuleOutcome = RuleOutcome.NOT_APPLICABLE

    def says(self, sample: Sample) -> RuleResult:
        """Its verdict on one output."""
        fmt = sample.stored if self.by == "stored" else sample.dtype
        if fmt not in self.formats:
            return not_applicable(f"no limit for {fmt}")
        if self.forward_only and not sample.forward:
            return not_applicable("applies to the forward pass alone")
        if not sample.exact.numel():
            return RuleResult(self.empty, "no element")
        if self.benchmark and sample.benchmark is None:
            return not_applicable("no benchmark")
        return self.judge(sample)


def _parts(value: float, limit: float) -> float:
    """value / limit; NaN exceeds every limit."""
    if math.isnan(value):
        return math.inf
    if limit == 0:
        return math.inf if value else 0.0
    return value / limit
