"""How far fp32 arithmetic may be off beside the kernel, by element, before the last rounding.

The argument is that of `kdaverify.operators.pointwise.tolerance`; formulas are those of math.md 6.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.formats import FORMATS, format_of
from oracles.pointwise.operations import OPERATIONS
from oracles.stages import Named

U: Final = FORMATS["fp32"].unit
UNIT: Final = 2.0**-22
LOST: Final = FORMATS["fp32"].min_normal
# Of a softplus that rounds 1 + exp(x), and takes the logarithm by a unit whose error near 1 is
# absolute. Source: PTX ISA, lg2.approx.
LOG_OF_SUM: Final = U + UNIT * math.log(2)
DEVIATIONS: Final = 4.0
# From here on softplus is its argument, to fp32.
THRESHOLD: Final = 20.0


@dataclass(frozen=True)
class Error:
    """An error bound before the last rounding.

    Args:
        exact: float64.
        kept: of the error where nothing is rounded beside 1.
        rounded: what rounding beside 1 adds.
        reach: the largest partial product; past fp32 nothing is judged.
    """

    exact: Tensor
    kept: Tensor
    rounded: Tensor
    reach: Tensor

    def summed(self, axes: tuple[int, ...], exact: Tensor, *, by: Tensor, lost: Tensor) -> Error:
        """Of the sum of these, each times `by`, over `axes`.

        Args:
            exact: the sum.
            lost: what underflow may take from each product.
        """
        terms, n = (self.exact * by).abs(), math.prod(by.shape[axis] for axis in axes)
        roundings = min(n, DEVIATIONS * math.sqrt(n)) * U * terms.sum(axes)
        kept = (by.abs() * self.kept + 2 * U * terms + lost).sum(axes) + roundings
        return Error(
            exact,
            kept,
            (by.abs() * self.rounded).sum(axes),
            ((1 + by.abs()) * self.reach).sum(axes),
        )


@dataclass(frozen=True)
class _Gate:
    """What both gates have in common: x = z + dt_bias, a = exp(A_log) and its relative error."""

    x: Tensor
    rate: Tensor
    off: Tensor

    @classmethod
    def of(cls, tensors: Named) -> _Gate:
        A_log, z = tensors["A_log"][:, None], tensors["z"]
        x = z + tensors["dt_bias"] if "dt_bias" in tensors else z
        return cls(x, A_log.exp().expand_as(x), UNIT + 2 * U * A_log.abs())

    def backward(
        self, dz: Error, by_rate: Error, by: Tensor, w: Tensor, gradients: Named
    ) -> dict[str, Error]:
        """dz, and the sums: dA_log of `by_rate` times `by`, ddt_bias of dz."""
        lost = LOST * (1 + self.rate) * (w > 0)
        dA_log = by_rate.summed((0, 1, 3), gradients["dA_log"], by=by, lost=lost)
        ddt_bias = dz.summed(
            (0, 1), gradients["ddt_bias"], by=torch.ones_like(w), lost=torch.zeros_like(w)
        )
        return {"dz": dz, "dA_log": dA_log, "ddt_bias": ddt_bias}


def _softplus(tensors: Named, _: float, g: Tensor) -> Error:
    gate = _Gate.of(tensors)
    by_exp = torch.sigmoid(gate.x) * (UNIT + 3 * U * gate.x.abs())
    kept = (
        gate.rate * by_exp
        + g.abs() * (UNIT + 2 * U + gate.off + 2 * U)
        + LOST * (1 + gate.rate + g.abs() / gate.rate)
    )
    return Error(g, kept, LOG_OF_SUM * gate.rate, gate.rate)


def _softplus_backward(
    tensors: Named, setting: float, dg: Tensor, gradients: Named
) -> dict[str, Error]:
    gate, w, exact = _Gate.of(tensors), dg.double().abs(), gradients["dz"]
    by_exp = torch.sigmoid(-gate.x) * (UNIT + 3 * U * gate.x.abs())
    kept = exact.abs() * (by_exp + 2 * UNIT + gate.off + 6 * U) + LOST * (1 + gate.rate) * (
        1 + w
    ) * (w > 0)
    # Where softplus is not yet its argument, its slope may be exp(x) / (1 + exp(x)), the factors
    # multiplied in any order.
    dz = Error(
        exact,
        kept,
        torch.zeros_like(kept),
        gate.rate * w.clamp(min=1) * gate.x.clamp(0, THRESHOLD).exp(),
    )
    g = _softplus(tensors, setting, OPERATIONS["gate_softplus"].forward(tensors, setting))
    g = replace(g, reach=torch.maximum(g.reach, g.exact.abs()))
    return gate.backward(dz, g, dg.double(), w, gradients)


@dataclass(frozen=True)
class _Sigmoid:
    """s = sigmoid(y) and s (1 - s), with errors of y's relative error `off` and their own."""

    y: Tensor
    off: Tensor | float

    @property
    def value(self) -> Tensor:
        return torch.sigmoid(self.y)

    @property
    def relative(self) -> Tensor:
        """Of s."""
        return torch.sigmoid(-self.y) * (self.y.abs() * (self.off + 2 * U) + UNIT) + UNIT + 2 * U

    @property
    def slope(self) -> Tensor:
        """Of s (1 - s), absolute, from exponentials."""
        relative = self.y.abs() * (self.off + 4 * U) + 4 * UNIT + 4 * U
        return self.value * torch.sigmoid(-self.y) * relative + LOST

    @property
    def rounded(self) -> Tensor:
        """What 1 - s adds to that."""
        return self.value * (self.value * self.relative + U)


def _bounded(tensors: Named, lower_bound: float, g: Tensor) -> Error:
    gate = _Gate.of(tensors)
    s = _Sigmoid(gate.rate * gate.x, gate.off + 3 * U)
    kept = g.abs() * (s.relative + 2 * U) + LOST * (1 - lower_bound)
    return Error(g, kept, torch.zeros_like(kept), gate.rate)


def _bounded_backward(
    tensors: Named, lower_bound: float, dg: Tensor, gradients: Named
) -> dict[str, Error]:
    gate, w, exact = _Gate.of(tensors), dg.double().abs(), gradients["dz"]
    s = _Sigmoid(gate.rate * gate.x, gate.off + 3 * U)
    factor = -lower_bound * gate.rate * w
    kept = (
        factor * s.slope
        + exact.abs() * (gate.off + 4 * U)
        + LOST * (1 - lower_bound) * (1 + gate.rate) * (1 + w) * (w > 0)
    )
    dz = Error(exact, kept, factor * s.rounded, (1 - lower_bound) * gate.rate * w.clamp(min=1))
    return gate.backward(dz, dz, gate.x, w, gradients)


def _beta(tensors: Named, factor: float, beta: Tensor) -> Error:
    kept = beta * (_Sigmoid(tensors["logits"], 0.0).relative + 2 * U) + LOST * (1 + factor)
    return Error(beta, kept, torch.zeros_like(kept), beta)


def _beta_backward(
    tensors: Named, factor: float, dbeta: Tensor, gradients: Named
) -> dict[str, Error]:
    s, w, exact = _Sigmoid(tensors["logits"], 0.0), dbeta.double().abs(), gradients["dlogits"]
    kept = factor * w * s.slope + exact.abs() * 4 * U + LOST * (1 + factor) * (1 + w) * (w > 0)
    return {"dlogits": Error(exact, kept, factor * w * s.rounded, factor * w)}


@dataclass(frozen=True)
class _Norm:
    """r = 1 / sqrt(sum x^2 + eps) of rows [.., 1], its relative error, the sum of squares."""

    r: Tensor
    off: Tensor
    squares: Tensor
    depth: float

    @classmethod
    def of(cls, x: Tensor, eps: float) -> _Norm:
        squares, K = x.square().sum(-1, keepdim=True), x.shape[-1]
        depth = min(K, DEVIATIONS * math.sqrt(K))
        off = ((depth + 3) * U + K * LOST / (squares + eps)) / 2 + UNIT + U
        return cls((squares + eps).rsqrt(), off, squares, depth)


def _l2norm(tensors: Named, eps: float, y: Tensor) -> Error:
    norm = _Norm.of(tensors["x"], eps)
    kept = y.abs() * (norm.off + 2 * U) + LOST
    return Error(y, kept, torch.zeros_like(kept), norm.squares.expand_as(y))


def _l2norm_backward(tensors: Named, eps: float, dy: Tensor, gradients: Named) -> dict[str, Error]:
    """y may be the one that the forward returned, rounded into its format."""
    norm = _Norm.of(tensors["x"], eps)
    w = dy.double().abs()
    exact = gradients["dx"]
    io = format_of(dy.dtype)
    y_signed = tensors["x"] * norm.r
    y = y_signed.abs()
    off = y * (norm.off + 2 * U + io.unit) + io.unit * io.min_normal
    inner = (y_signed * dy.double()).sum(-1, keepdim=True).abs()
    moduli = (y * w).sum(-1, keepdim=True)
    inner_off = (w * off).sum(-1, keepdim=True) + norm.depth * U * moduli
    terms = norm.r * (w + y * inner)
    live = LOST * (1 + norm.r) * (1 + w) * (w.amax(-1, keepdim=True) > 0)
    kept = norm.r * (y * inner_off + off * inner) + terms * (norm.off + 4 * U) + live
    return {"dx": Error(exact, kept, torch.zeros_like(kept), norm.squares.expand_as(exact))}


FORWARD: Final[Mapping[str, Callable[[Named, float, Tensor], Error]]] = {
    "gate_softplus": _softplus,
    "gate_bounded": _bounded,
    "beta_sigmoid": _beta,
    "l2norm": _l2norm,
}
"""(tensors in float64, setting, exact result) -> its tolerance."""

BACKWARD: Final[Mapping[str, Callable[[Named, float, Tensor, Named], dict[str, Error]]]] = {
    "gate_softplus": _softplus_backward,
    "gate_bounded": _bounded_backward,
    "beta_sigmoid": _beta_backward,
    "l2norm": _l2norm_backward,
}
"""(tensors in float64, setting, cotangent in its own type, exact gradients) -> the tolerance of
each."""
