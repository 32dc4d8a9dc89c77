"""Splits on trial: every number of splits, format of partials and order of the merge, held against
a contract's tolerance as any kernel is; and requests computed in their batch and alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Final, Literal, TypeVar

import torch
from torch import Tensor

from kdaverify.budgets.attention.contract import AttentionContract
from kdaverify.budgets.attention.ensemble import kernel
from kdaverify.budgets.attention.reference import attention_reference
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.sampled import reference_kernels
from kdaverify.budgets.standard import Reference
from kdaverify.budgets.statistics import rms
from kdaverify.operators.attention.problem import MlaDecodeProblem
from kdaverify.operators.attention.splits.plan import Heads, PartialFormat, SplitPlan
from oracles.attention.design import OnlineDesign, Span
from oracles.attention.exact import attend
from oracles.attention.segment import Segment
from oracles.enclosure import Enclosure

T = TypeVar("T")
Merge = Literal["at once", "in order", "reversed", "tree"]
MERGES: Final[tuple[Merge, ...]] = ("at once", "in order", "reversed", "tree")
REGIMES: Final = ("normal", "flat", "peaked", "first", "last", "edges", "rising", "high")
"""Partials weigh alike, one of them has all weight, or each has more than those before."""
SPLITS: Final = (1, 2, 8, 32)
FP32: Final = FORMATS["fp32"]
PARTIALS: Final = (
    PartialFormat(FP32, FP32),
    PartialFormat(FORMATS["fp16"], FP32),
    PartialFormat(FORMATS["bf16"], FP32),
    PartialFormat(FP32, FORMATS["bf16"]),
)
"""fp32; FlashInfer's, which is its output's, in both widths; and statistics in 16 bits, which no
released kernel has."""
ERROR_HEADS: Final = Heads(H=8)
"""DeepSeek's widths: of fewer elements, rms limits are wider. Heads are alike: 8 stand for 128."""
BIT_HEADS: Final = Heads(H=8, d_k=72, d_v=64)
"""That bits differ needs no width: 70,000 keys of d_k = 576 would take ten times as long."""


@dataclass(frozen=True)
class CutDesign(OnlineDesign):
    """A design whose splits are given, as those of a schedule."""

    at: tuple[Span, ...] = ()

    def spans(self, s_k: int) -> list[Span]:
        return [*self.at]


@dataclass(frozen=True)
class SplitTrial:
    """One way to split under one regime.

    Args:
        share: the worst statistic of o and lse over its limit, or inf; statistic: which one.
        error: rms of the error of o over rms of o.
    """

    regime: str
    splits: int
    merge: Merge
    partial: str
    share: float
    statistic: str
    error: float


@dataclass(frozen=True)
class SplitStudy:
    """Splits of kernels of a contract, held against its tolerance.

    Args:
        contract: whose tolerance, and whose other formats.
        keys: of the request; seed: of its numbers.
    """

    contract: AttentionContract
    regimes: tuple[str, ...] = REGIMES
    keys: int = 1024
    seed: int = 1

    @cached_property
    def ways(self) -> list[tuple[int, Merge, PartialFormat]]:
        """Without splits, nothing is stored or merged."""
        every = product(SPLITS, MERGES, PARTIALS)
        return [way for way in every if way[0] > 1 or way[1:] == (MERGES[0], PARTIALS[0])]

    @property
    def steps(self) -> int:
        return len(self.regimes) * len(self.ways)

    def declared(self, trials: Sequence[SplitTrial]) -> list[SplitTrial]:
        """Those with partials, and no more splits than the contract admits."""
        return [trial for trial in trials if 1 < trial.splits <= self.contract.splits]

    def run(self) -> Iterator[SplitTrial]:
        """Every trial, one after another."""
        for regime in self.regimes:
            segment = request(self.contract, regime, self.keys, ERROR_HEADS, self.seed)
            judge = SplitJudge(regime, segment, self.contract)
            yield from (judge.trial(*way) for way in self.ways)


@dataclass(frozen=True)
class SplitJudge:
    """A request of some regime, its exact result, and what the contract allows."""

    regime: str
    segment: Segment
    contract: AttentionContract

    @cached_property
    def exact(self) -> dict[str, Enclosure]:
        return _named([attend(self.segment)])

    @cached_property
    def reference(self) -> Reference:
        return attention_reference(
            [self.segment], self.exact, _named, self.contract, method="float64"
        )

    def trial(self, splits: int, merge: Merge, partial: PartialFormat) -> SplitTrial:
        """A kernel that cuts the keys evenly."""
        stored = {**self.contract.tensors, "partial_o": partial.o, "partial_lse": partial.lse}
        design = replace(baseline(self.contract), splits=splits, merge=merge)
        found = _named([computed(self.segment, design, replace(self.contract, tensors=stored))])
        shares = dict(self._shares(found))
        worst = max(shares, key=lambda which: shares[which])
        error = rms(self.exact["o"].error(found["o"])) / rms(self.exact["o"].high)
        return SplitTrial(self.regime, splits, merge, partial.name, shares[worst], worst, error)

    def _shares(self, found: dict[str, Tensor]) -> Iterator[tuple[str, float]]:
        for name, allowed in self.reference.budgets.items():
            exact = self.exact[name]
            measured = allowed.measure(exact.error(found[name]), exact)
            for which, ratio in allowed.ratios(measured).items():
                yield f"{name} {which}", math.inf if math.isnan(ratio) else ratio


def _named(parts: Sequence[tuple[T, ...]]) -> dict[str, T]:
    return dict(zip(("o", "lse"), parts[0], strict=True))


def request(
    contract: AttentionContract, regime: str, keys: int, heads: Heads, seed: int
) -> Segment:
    """A request of the contract's format."""
    fields = {"dtype": contract.storage("o").name, "logits": regime, "k_lengths": (keys,)}
    problem = MlaDecodeProblem.model_validate({**fields, **vars(heads), "seed": seed, "page": 64})
    return problem.inputs().segments()[0]


def baseline(contract: AttentionContract) -> OnlineDesign:
    return next(iter(contract.designs().values()))


@torch.inference_mode()
def computed(
    segment: Segment, design: OnlineDesign, contract: AttentionContract
) -> tuple[Tensor, Tensor]:
    """o and lse of an emulated kernel with the contract's formats, a library's sums."""
    library = next(iter(reference_kernels(contract).values()))
    return kernel(design, library, contract.accumulate.dtype).forward(segment)


@dataclass(frozen=True)
class Alone:
    """Requests that are cut alike, in their batch against the same alone.

    Args:
        requests: their numbers; keys: of each.
        splits, alone: numbers of splits.
        changed: share of elements of o that differ; largest: the largest difference over rms of o.
    """

    requests: tuple[int, ...]
    keys: int
    splits: int
    alone: int
    changed: float
    largest: float


def batch_invariance(
    plan: SplitPlan, contract: AttentionContract, seed: int = 1
) -> Iterator[Alone]:
    """Every request as it is cut in its batch, and as alone; equal keys and cuts are run once."""
    for numbers in plan.alike:
        keys, cuts = plan.lengths[numbers[0]], (plan.spans[numbers[0]], plan.alone(numbers[0]))
        changed, largest = (0.0, 0.0)
        if cuts[0] != cuts[1]:
            segment = request(contract, "normal", keys, BIT_HEADS, seed)
            changed, largest = _apart(
                *(computed(segment, _cut(contract, at), contract)[0] for at in cuts)
            )
        yield Alone(numbers, keys, len(cuts[0]), len(cuts[1]), changed, largest)


def _apart(batch: Tensor, alone: Tensor) -> tuple[float, float]:
    """The share of elements that differ, and the largest difference over rms."""
    apart = (batch.double() - alone.double()).abs()
    return float((apart > 0).double().mean()), float(apart.max()) / rms(alone.double())


def _cut(contract: AttentionContract, at: tuple[Span, ...]) -> CutDesign:
    return replace(CutDesign(**vars(baseline(contract))), splits=len(at), at=at)
