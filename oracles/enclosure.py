"""A value together with a proof of how far it can be from the truth."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.tensors import OUTPUTS


@dataclass(frozen=True)
class Enclosure:
    """Every exact element lies within `radius` of `high + low`.

    Args:
        high: float64, the value rounded to float64.
        low: float64, what `high` leaves out (zeros where the oracle itself is float64).
        radius: float64 >= 0, same shape; inf means nothing is proven.
        zero: bool, same shape; True where the exact value is proven to be 0.
    """

    high: Tensor
    low: Tensor
    radius: Tensor
    zero: Tensor

    def error(self, x: Tensor) -> Tensor:
        """x - exact in float64, good to `radius`; `high` is subtracted exactly if x is close."""
        return (x.to(torch.float64) - self.high).sub_(self.low)

    def overlaps(self, other: Enclosure) -> Tensor:
        """True where both enclosures can hold the same exact value."""
        gap = ((self.high - other.high) + (self.low - other.low)).abs()
        # One rounding of each difference: the comparison itself must not reject two touching balls.
        slack = torch.finfo(torch.float64).eps ** 2 * self.high.abs()
        return gap <= self.radius + other.radius + slack


@dataclass(frozen=True)
class CertifiedOutputs:
    """The exact outputs of one call of KDA, enclosed.

    Args:
        o: [B, T, HV, V]; rows past the last offset of a pack are zero and proven so.
        final_state: [N, HV, K, V].
        method: how it was computed ("float64 recurrence", "balls, chunk form, 128 bits", ...), for
            the record.
    """

    o: Enclosure
    final_state: Enclosure
    method: str

    def named(self) -> dict[str, Enclosure]:
        """By name, in the order of OUTPUTS."""
        return {name: getattr(self, name) for name in OUTPUTS}
