"""Small mistakes, named by elements whose error is not that of a right kernel.

Of a mistake of rounding no statistic of a whole output need be wrong: what rejects it are relative
errors of small elements. In those, the mistake is most of the error, and has its own sign and size
in each.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.fault_comparison import SHARE, FaultComparison, Match
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.diagnosis.suspects import suspects
from kdaverify.diagnosis.tolerances import Fit

CLEAR: Final = 8.0
"""Times the error of a right kernel in the same element: two right kernels part by so much in one
element of twelve, and there by chance."""
LEAST: Final = 32
"""Elements whose error is clear, at least."""
EXPLAINED: Final = 0.75
"""Least share of them that a mistake must reproduce. B4 reproduced all of 2,440 and of 7,851
elements in its own kernel, and the nearest other mistake 33 %."""


def by_elements(judged: Adapter, first: PropertyCase, *, until: float) -> list[Match]:
    """The known mistakes that reproduce the clear errors by element, nearest first.

    Args:
        first: the test that failed.
        until: of the monotonic clock; what is begun is ended.
    """
    if time.monotonic() > until:
        return []
    lineup, elements, found = FaultComparison(first, judged), dict[object, _Clear](), list[Match]()
    if lineup.kernel.failed is not None:
        return []
    for suspect in next(suspects(first, judged)):
        own = suspect.fault.operator
        if own not in elements:
            elements[own] = _Clear.of(lineup, lineup.right(suspect))
        share, residual = elements[own].reproduced(lineup.answer(suspect))
        if share >= EXPLAINED:
            found.append(Match(suspect, Fit(residual, 0.0)))
    return sorted(found, key=lambda match: match.fit.distance)


@dataclass(frozen=True)
class _Clear:
    """The elements of a kernel whose error is clear.

    Args:
        masks: of these elements, by output.
        kernel: its outputs.
        errors: |kernel - exact| in these elements, by output.
    """

    masks: dict[str, Tensor]
    kernel: dict[str, Tensor]
    errors: dict[str, Tensor]

    @classmethod
    def of(cls, lineup: FaultComparison, right: KernelErrors) -> _Clear:
        """Math: |kernel - exact| > 8 |right - exact|."""
        kernel, masks, errors = lineup.kernel.outputs, dict[str, Tensor](), dict[str, Tensor]()
        for name in kernel.keys() & right.outputs.keys() & lineup.scales.keys():
            exact = lineup.scales[name].exact
            error = (kernel[name] - exact).abs()
            masks[name] = error > CLEAR * (right.outputs[name] - exact).abs()
            errors[name] = error[masks[name]]
        return cls(masks, kernel, errors)

    def reproduced(self, other: KernelErrors) -> tuple[float, float]:
        """The share of elements with at most a quarter of the error left, and the median left."""
        if other.failed is not None or not self.masks.keys() <= other.outputs.keys():
            return 0.0, 1.0
        left = _joined(
            (self.kernel[name] - other.outputs[name])[mask].abs() / self.errors[name]
            for name, mask in self.masks.items()
        )
        if left.numel() < LEAST:
            return 0.0, 1.0
        return float((left <= SHARE).double().mean()), float(left.nan_to_num(1.0).median())


def _joined(parts: Iterable[Tensor]) -> Tensor:
    own = [*parts]
    return torch.cat(own) if own else torch.empty(0)
