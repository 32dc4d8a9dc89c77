"""The size of each element's error in conforming kernels, by counted roundings.

A worst-case bound says what no conforming kernel can do. Most of a kernel's roundings are not
worst: over many elements their errors have the variance of independent uniform roundings (Higham
and Mary 2019, the model of probabilistic analysis). A kernel that sums in a narrower format, or has
wrong low digits, can stay below every element's bound and is then far above that variance, or leans
one way. So two statistics stand beside the bound: the rms of error / deviation, and the weighted
bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from kdaverify.budgets.ceiling import Element, worst_element
from kdaverify.budgets.constants import FEWEST_INDEPENDENT, MODEL_DEVIATIONS
from kdaverify.budgets.formats import Format
from oracles.enclosure import Enclosure


@dataclass(frozen=True)
class ErrorModel:
    """The model of one output.

    Args:
        exact: the exact values, float64.
        deviation: of every element's error, were its roundings independent.
        lean: what may have one sign in every element (functions' units, underflow, radius).
        io: what the result is rounded to.
        groups: of elements whose roundings are not independent within one.
    """

    exact: Tensor
    deviation: Tensor
    lean: Tensor
    io: Format
    groups: int

    @cached_property
    def _known(self) -> Tensor:
        return (self.deviation > 0) & torch.isfinite(self.deviation)

    @cached_property
    def independent(self) -> float:
        """How many errors there are of their own kind.

        Values that are rounded to one number are rounded alike: near the minimum of SiLU all of a
        bf16 output is one number or two. The same number added to a channel of one binade is
        rounded alike in every token (a bias: 0.5 u of 432 elements in 2 channels).
        """
        return float(
            min(self.io.round(self.exact.abs()[self._known]).unique().numel(), self.groups)
        )

    def normalised(self, error: Tensor) -> float:
        """The rms of what exceeds `lean`, in deviations."""
        known = self._known
        if not bool(known.any()):
            return 0.0
        excess = (error.abs() - self.lean).clamp(min=0.0)[known] / self.deviation[known]
        return float(excess.square().mean().sqrt())

    def bias(self, error: Tensor) -> float:
        """By which fraction of itself the output is too large, weighted with its precision."""
        share, _ = self._weighted
        known = self._known
        size = float(share.square().sum())
        return (
            abs(float((error[known] / self.deviation[known] * share).sum())) / size if size else 0.0
        )

    @cached_property
    def _weighted(self) -> tuple[Tensor, Tensor]:
        known = self._known
        return self.exact[known] / self.deviation[known], self.lean[known] / self.deviation[known]

    @property
    def most_normalised(self) -> float:
        """What of it a conforming kernel has: 1, and chance over so many independent elements."""
        n = self.independent
        return 1 + MODEL_DEVIATIONS / math.sqrt(2 * n) if n >= FEWEST_INDEPENDENT else math.inf

    @property
    def most_bias(self) -> float:
        """5 deviations of the weighted mean, beside what leans in every element."""
        share, lean = self._weighted
        n, size = self.independent, float(share.square().sum())
        if n < FEWEST_INDEPENDENT or not size:
            return math.inf
        return (
            MODEL_DEVIATIONS * math.sqrt(share.numel() / n / size)
            + float((lean * share.abs()).sum()) / size
        )


@dataclass(frozen=True)
class ElementBound:
    """A proven bound for every element of one output."""

    bound: Tensor

    def used(self, error: Tensor, truth: Enclosure, fmt: Format) -> Element:
        """As of `ErrorBound`: the oracle's radius does not count; one rounding passes."""
        excess = (error.abs() - truth.radius).clamp(min=0.0)
        return worst_element(
            excess.masked_fill(excess <= fmt.unit * truth.high.abs(), 0.0), self.bound
        )

    def explain(self, at: int, error: float) -> str:
        bound = float(self.bound.flatten()[at])
        return f"proven error bound {bound:.3g} at this element" if math.isfinite(bound) else ""


def without(model: ErrorModel, undefined: Tensor) -> ErrorModel:
    """The model of the elements that have an exact value."""
    return replace(model, deviation=model.deviation.masked_fill(undefined, 0.0))
