"""The gated RMSNorm behind the recurrence: y = w x / sqrt(mean x^2 + eps) act(gate), rows of V,
exact to a proven radius. With the gate first, the rows that are normalised are u = x act(gate), and
y = w u / sqrt(mean u^2 + eps).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Final

import torch
from torch import Tensor

from oracles.pointwise.rounding import (
    FLOAT64,
    FUNCTION_UNITS,
    Activation,
    Precision,
    RoundingError,
    partial_sums,
)
from oracles.signature import CallSignature, Role, TensorCall, TensorRole

ROWS: Final = ("B", "T", "H", "V")
SIGNATURE: Final = CallSignature(
    inputs=(
        TensorRole("x", Role.TOKEN, ROWS, "dx"),
        TensorRole("gate", Role.TOKEN, ROWS, "dgate"),
        TensorRole("weight", Role.PARAMETER, ("V",), "dweight"),
    ),
    outputs=(TensorRole("y", Role.TOKEN, ROWS, "dy"),),
)


@dataclass(frozen=True)
class GatedNormCall(TensorCall):
    """One call: x and gate [B, T, H, V], weight [V], eps in the root, silu or sigmoid.

    Args:
        rank: axes of x and gate as the function gets them: 4, or 3 or 2 with the leading ones
            flattened.
        gate_first: whether the gate multiplies x before the norm.
    """

    op: ClassVar = "gated_rms_norm"
    signature: ClassVar = SIGNATURE

    x: Tensor
    gate: Tensor
    weight: Tensor
    eps: float = 1e-6
    activation: str = "silu"
    rank: int = 4
    gate_first: bool = False


@dataclass(frozen=True)
class NormPrecision:
    """How a kernel computes.

    Args:
        accumulate: sums and functions; result: what is returned.
        stored: what the normalised row, and its product with the weight, are rounded to on the way,
            and with the gate first the row that is normalised; None: none is.
        partials: what the partial sums of the weight's gradient are stored in.
        casts: what the gradient of each use of x, and of gate, is stored in.
        beside_one: as of `Activation`.
    """

    accumulate: Precision
    result: Precision
    stored: Precision | None = None
    partials: Precision | None = None
    casts: Precision | None = None
    beside_one: bool = False


EXACT: Final = NormPrecision(FLOAT64, FLOAT64)
Results = dict[str, tuple[Tensor, RoundingError]]


class GatedNorm:
    """One call in float64, and the errors of a kernel that has the given precision."""

    def __init__(self, call: GatedNormCall, precision: NormPrecision = EXACT) -> None:
        self.call, self.precision = call, precision
        self.given, self.gate = call.x.double(), call.gate.double()
        self.weight = call.weight.double()

    @cached_property
    def act(self) -> Activation:
        return Activation(self.call.activation, self.gate, self.precision.beside_one)

    @cached_property
    def x(self) -> Tensor:
        """The rows that are normalised."""
        return self.given * self.act.value if self.call.gate_first else self.given

    @cached_property
    def x_error(self) -> RoundingError:
        if not self.call.gate_first:
            return RoundingError.none(self.x)
        accumulate = self.precision.accumulate
        own = RoundingError.rounding(self.x, 1, accumulate)
        return self._stored(self.act.error(accumulate).times(self.given) + own, self.x)

    @cached_property
    def factor(self) -> Tensor:
        """What multiplies the norm: the activated gate, or nothing."""
        return torch.ones_like(self.gate) if self.call.gate_first else self.act.value

    def _factor_error(self) -> RoundingError:
        if self.call.gate_first:
            return RoundingError.none(self.gate)
        return self.act.error(self.precision.accumulate)

    @cached_property
    def mean(self) -> Tensor:
        return self.x.square().mean(-1, keepdim=True) + self.call.eps

    @cached_property
    def inverse(self) -> Tensor:
        """1 / sqrt(mean x^2 + eps) of every row, [..., 1]."""
        return self.mean.rsqrt()

    @cached_property
    def inverse_error(self) -> RoundingError:
        """Relative: half of that of the mean, and 2 ulp of the root."""
        u, V, squares = self.precision.accumulate.unit, self.x.shape[-1], self.x.square()
        part = (self.mean - self.call.eps).clamp(min=0.0) / self.mean
        total = squares.sum(-1, keepdim=True)
        lost = self.precision.accumulate.smallest / self.mean
        # Half of the error of the mean, to second order where that is large.
        # (x + e)^2 is off by at most 2 |x e| + e^2.
        off = self.x_error
        moved = (2 * self.x.abs() * off.bound + off.bound.square()).mean(-1, keepdim=True)
        mean = self.precision.accumulate.gamma(V + 2) * part + 2 * u + lost
        mean = mean * (1 + moved / self.mean) + moved / self.mean
        rooted = torch.where(mean < 0.5, mean / 2 / (1 - mean).clamp(min=0.5), torch.inf)
        sums = (
            squares.square().sum(-1, keepdim=True)
            + partial_sums(squares.square().sum(-1, keepdim=True), total, V)
        ) / total.square()
        variance = u * u / 12 * ((sums.nan_to_num(nan=0.0) + 1) * part.square() + 2)
        scattered = (squares * off.variance).sum(-1, keepdim=True) / (V * self.mean).square()
        variance = variance + scattered
        leaning = (self.x.abs() * off.lean).mean(-1, keepdim=True) / self.mean
        lean = FUNCTION_UNITS * u + lost + leaning
        return RoundingError(rooted + FUNCTION_UNITS * u, variance, lean)

    @cached_property
    def normed(self) -> Tensor:
        return self.x * self.inverse

    @cached_property
    def normed_error(self) -> RoundingError:
        own = RoundingError.rounding(self.normed, 1, self.precision.accumulate)
        inverse = self._spread(self.inverse_error)
        passed = self.x_error.times(self.inverse * (1 + inverse.bound))
        return inverse.times(self.normed) + passed + own

    def _stored(self, error: RoundingError, value: Tensor) -> RoundingError:
        """With a rounding into the type of x, where the contract has it."""
        stored = self.precision.stored
        return error if stored is None else error.returned(value, stored)

    @cached_property
    def _normed_stored(self) -> RoundingError:
        return self._stored(self.normed_error, self.normed)

    @cached_property
    def _weighted(self) -> RoundingError:
        """Of the normalised row times the weight."""
        return self._stored(self._normed_stored.times(self.weight), self.normed * self.weight)

    def _gated_back(self, dy: Tensor) -> RoundingError:
        """Of dy act(gate), which autograd stores where it stored what the gate multiplies."""
        accumulate, gated = self.precision.accumulate, dy * self.factor
        own = RoundingError.rounding(gated, 1, accumulate)
        return self._stored(self._factor_error().times(dy) + own, gated)

    def _gated(self, value: Tensor, error: RoundingError, roundings: int) -> RoundingError:
        """Of a value times act(gate), `roundings` products in all."""
        both = error.times(self.factor) + self._factor_error().times(value.abs() + error.bound)
        return both + RoundingError.rounding(
            value * self.factor, roundings, self.precision.accumulate
        )

    def forward(self) -> Results:
        weighted = self.normed * self.weight
        y = weighted * self.factor
        return {
            "y": (y, self._gated(weighted, self._weighted, 2).returned(y, self.precision.result))
        }

    def backward(self, cotangents: Mapping[str, Tensor]) -> Results:
        dy = cotangents["dy"].double()
        dx, dgate = (self._dx(dy), None) if not self.call.gate_first else self._through_the_gate(dy)
        found = {"dx": dx, "dgate": dgate or self._dgate(dy), "dweight": self._dweight(dy)}
        return {
            name: (value, error.returned(value, self.precision.result))
            for name, (value, error) in found.items()
        }

    def _through_the_gate(self, dy: Tensor) -> tuple[tuple[Tensor, RoundingError], ...]:
        """dx = du act(gate) and dgate = du x act'(gate), of u = x act(gate)."""
        accumulate, act, x = self.precision.accumulate, self.act, self.given
        du, off = self._dx(dy)
        off = self._stored(off, du)
        size = du.abs() + off.bound
        dx, dz = du * act.value, du * x * act.slope
        of_x = off.times(act.value) + act.error(accumulate).times(size)
        of_z = off.times(x * act.slope) + act.slope_error(accumulate).times(size * x)
        of_z += self._of_uses([size * (x * part).abs() for part in act.slope_terms])
        return (
            (dx, of_x + RoundingError.rounding(dx, 1, accumulate)),
            (dz, of_z + RoundingError.rounding(dz, 3, accumulate)),
        )

    def _dgate(self, dy: Tensor) -> tuple[Tensor, RoundingError]:
        by = dy * self.normed * self.weight
        slope = self.act.slope
        error = self._weighted.times(dy * slope)
        value = by * slope
        rough = self.act.slope_error(self.precision.accumulate).times(
            by.abs() + self.normed_error.bound * (dy * self.weight).abs()
        )
        error += rough + RoundingError.rounding(value, 3, self.precision.accumulate)
        size = by.abs() + self._weighted.bound * dy.abs()
        return value, error + self._of_uses([size * part.abs() for part in self.act.slope_terms])

    def _of_uses(self, moduli: list[Tensor]) -> RoundingError:
        """Of gradients that are added, one of each use of an input that is widened there."""
        casts = self.precision.casts
        if casts is None:
            return RoundingError.none(moduli[0])
        return RoundingError.of_terms(moduli, casts)

    def _dweight(self, dy: Tensor) -> tuple[Tensor, RoundingError]:
        accumulate, gated = self.precision.accumulate, dy * self.factor
        products = gated * self.normed
        terms, n = products.flatten(0, -2), products[..., 0].numel()
        error = self._gated_back(dy).times(self.normed.abs() + self._normed_stored.bound)
        error += self._normed_stored.times(gated)
        error += RoundingError.rounding(products, 1, accumulate)
        error = self._stored(error, products)
        summed = error.mapped(lambda x: x.flatten(0, -2).sum(0))
        moduli, total = terms.abs().sum(0) + summed.bound, terms.sum(0)
        sums = torch.maximum(
            partial_sums(terms.square().sum(0), total, n), terms.cumsum(0).square().sum(0)
        )
        variance = summed.variance + accumulate.unit**2 / 3 * sums
        lost = accumulate.smallest * n * (moduli > 0)
        found = RoundingError(
            summed.bound + accumulate.gamma(n) * moduli + lost,
            variance,
            summed.lean + lost,
            summed.overflows,
        )
        stored = self.precision.partials
        return total, found if stored is None else found + RoundingError.of_partials(terms, stored)

    def _dx(self, dy: Tensor) -> tuple[Tensor, RoundingError]:
        """dx = r (p - n mean(p n)) with p = dy act(gate) w."""
        accumulate, V = self.precision.accumulate, self.x.shape[-1]
        p, n, r = dy * self.factor * self.weight, self.normed, self.inverse
        off_p = self._gated_back(dy).times(self.weight) + RoundingError.rounding(p, 1, accumulate)
        off_p = self._stored(off_p, p)
        off_n, terms = self.normed_error, p * n
        m = terms.mean(-1, keepdim=True)
        by_mean = (off_p.times(n) + off_n.times(p.abs() + off_p.bound)).mapped(
            lambda x: x.mean(-1, keepdim=True), lambda x: x.sum(-1, keepdim=True) / V**2
        )
        moduli = terms.abs().mean(-1, keepdim=True)
        sums = partial_sums(terms.square().sum(-1, keepdim=True), m * V, V) / V**2
        added = terms.square().sum(-1, keepdim=True) / V**2 + m.square()
        off_m = by_mean + RoundingError(
            accumulate.gamma(V + 2) * moduli,
            accumulate.unit**2 / 3 * (sums + added),
            torch.zeros_like(m),
        )
        inner = p - n * m
        both = off_p + off_n.times(m.abs() + off_m.bound) + self._spread(off_m).times(n)
        both += RoundingError.rounding(p, 1, accumulate) + RoundingError.rounding(
            n * m, 2, accumulate
        )
        off_r = self._spread(self.inverse_error).times(r)
        value = r * inner
        error = both.times(r) + off_r.times(inner.abs() + both.bound)
        error += RoundingError.rounding(value, 1, accumulate)
        # x x, of which autograd adds the gradient twice, and x r: three uses at most.
        mean = r * (n * m).abs() + self._spread(off_m).times(n).bound * r
        direct = r * (p.abs() + off_p.bound)
        return value, error + self._of_uses([direct, mean / 2, mean / 2])

    def _spread(self, error: RoundingError) -> RoundingError:
        return error.mapped(lambda x: x.expand_as(self.x))
