"""Softmax attention and its backward in float64, with proven errors of every element.

The same formulas give the radius of the oracle and the bound of a kernel: only precisions differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from oracles.attention.exact_backward import Backward
from oracles.attention.segment import Segment
from oracles.attention.softmax_precision import (
    BLOCK,
    EXACT,
    SCALING,
    Known,
    SoftmaxPrecision,
    known_product,
)
from oracles.enclosure import Enclosure
from oracles.pointwise.rounding import FUNCTION_UNITS, Precision, RoundingError, partial_sums


class Attended(NamedTuple):
    """o [H, s_q, d_v], 0 in rows without keys, and lse [H, s_q], -inf there."""

    o: Enclosure
    lse: Enclosure


class Differentiated(NamedTuple):
    """dq [H, s_q, d_k], dk [h_kv, s_k, d_k], dv [h_kv, s_k, d_v]."""

    dq: Enclosure
    dk: Enclosure
    dv: Enclosure


def attend(segment: Segment) -> Attended:
    """Attention in float64 with a proven radius.

    Math: with |S^ - S| <= E from the sum of |q| |k|, a weight is off by exp(E) - 1, LSE by the
    average of that under P, o by sums of P (exp(E) - 1) |v|: bounds in the logits.
    Source: Higham, Accuracy and Stability of Numerical Algorithms, 2002, chapters 2 to 4.
    """
    softmax = Softmax(segment)
    return Attended(enclosed(softmax.o), enclosed(softmax.lse))


def attend_backward(segment: Segment, d_o: Tensor, d_lse: Tensor | None = None) -> Differentiated:
    """Gradients in float64 with a proven radius.

    Math: dS = P (d_o v^T - <d_o, o> + d_lse); dq = c dS k; dk = c dS^T q; dv = P^T d_o, added up
    over the query heads of a key head.

    Args:
        d_o: [H, s_q, d_v]; d_lse: [H, s_q], or None where nothing depends on lse.
    """
    return Differentiated(*map(enclosed, Softmax(segment).backward(d_o, d_lse)))


def enclosed(known: Known) -> Enclosure:
    """A value and its bound; exact zeros are those where every term is 0."""
    value, error = known
    zero = (value == 0) & (error.bound == 0)
    return Enclosure(value, torch.zeros_like(value), error.bound, zero)


@dataclass(frozen=True)
class Softmax:
    """Attention of a segment as somebody computes it, over its keys alone: values in float64, with
    errors. `oracles.attention.sink` adds a sink.
    """

    segment: Segment
    precision: SoftmaxPrecision = field(default=EXACT)

    @cached_property
    def q(self) -> Tensor:
        """[H, s_q, d_k] In float64."""
        return self.segment.q.double()

    @cached_property
    def k(self) -> Tensor:
        """[H, s_k, d_k] In float64, an entry for every query head."""
        return self.segment.of_heads(self.segment.k.double())

    @cached_property
    def v(self) -> Tensor:
        """[H, s_k, d_v] The same of values."""
        return self.segment.of_heads(self.segment.v.double())

    @cached_property
    def hidden(self) -> Tensor:
        """[s_q, s_k] Keys that a row does not see."""
        return ~self.segment.visible

    @property
    def unit(self) -> float:
        """Unit roundoff of sums and functions."""
        return self.precision.accumulate.unit

    @property
    def roundings(self) -> int:
        """Roundings of a sum over keys: one a key, and those of rescaling."""
        return self.hidden.shape[-1] + 2 * self._blocks

    @property
    def _blocks(self) -> int:
        return 0 if self.precision is EXACT else -(-self.hidden.shape[-1] // BLOCK)

    @cached_property
    def scores(self) -> Known:
        """[H, s_q, s_k] S, and its error."""
        product, error = known_product(self.q, self.k.mT, self.precision.accumulate, SCALING)
        if self.precision.query is not None:
            error = error + self._query(self.precision.query)
        for stored in self.precision.scores:
            error = error.returned(product, stored)
        c = torch.tensor(self.segment.scale, dtype=torch.float64)
        return product * c, error.times(c)

    def _query(self, stored: Precision) -> RoundingError:
        """The error of q k where q is rounded."""
        own = RoundingError.rounding(self.q, 1, stored)
        k = self.k.mT
        return own.mapped(lambda x: x.to(k) @ k.abs(), lambda x: x @ k.square())

    @cached_property
    def _largest(self) -> Tensor:
        """[H, s_q, 1] The largest visible score; 0 where there is none."""
        top = self.scores[0].masked_fill(self.hidden, -torch.inf)
        top = top.amax(-1, keepdim=True) if top.shape[-1] else top.new_zeros(*top.shape[:2], 1)
        return top.nan_to_num(neginf=0.0)

    @cached_property
    def exponents(self) -> RoundingError:
        """The error of S - m as the exponential sees it, its own included, absolute."""
        s, error = self.scores
        u, depth = self.unit, (s - self._largest).abs()
        moved = u * (2 * depth + (0 if self.precision is EXACT else 2) * s.abs())
        units = FUNCTION_UNITS * u * (1 + self._blocks)
        found = RoundingError(
            error.bound + moved + units, error.variance + moved.square() / 3, error.lean + units
        )
        return found.mapped(lambda x: x.masked_fill(self.hidden, 0.0))

    @cached_property
    def _sums(self) -> tuple[Tensor, Tensor]:
        """[H, s_q, s_k] exp(S - m) of visible keys, and [H, s_q, 1] their sum."""
        w = (self.scores[0] - self._largest).exp().masked_fill(self.hidden, 0.0)
        return w, w.sum(-1, keepdim=True)

    @cached_property
    def weights(self) -> Tensor:
        """[H, s_q, s_k] P; 0 where nothing is visible."""
        w, total = self._sums
        return torch.where(total > 0, w / total, 0.0)

    @cached_property
    def _relative(self) -> Tensor:
        """[H, s_q, s_k] The largest relative error of an unrounded weight exp(S - m)."""
        return torch.expm1(self.exponents.bound)

    @cached_property
    def _total_error(self) -> Tensor:
        """[H, s_q, 1] The largest relative error of the sum of weights."""
        shares = (self.weights * self._relative).sum(-1, keepdim=True)
        if (added := self.precision.row_sum) is not None:
            lost = added.vanishing * (~self.hidden).sum(-1, keepdim=True) / self._sums[1]
            shares = shares + added.unit * (1 + shares) + lost.nan_to_num(posinf=0.0)
        return shares + self.precision.accumulate.gamma(self.roundings + 1) * (1 + shares)

    @cached_property
    def lse(self) -> Known:
        """[H, s_q] LSE, -inf without keys, and its error."""
        _, total = self._sums
        logged = total.log()
        value, u = (self._largest + logged).squeeze(-1), self.unit
        t = self._total_error.squeeze(-1)
        rounded = u * (FUNCTION_UNITS * (1 + logged.squeeze(-1).abs()) + 4 * value.abs())
        bound = torch.where(t < 1, -torch.log1p(-t.clamp(max=0.5)) * (1 + t), torch.inf)
        bound = torch.where(t < 0.5, bound, torch.inf) + rounded
        p = self.weights
        variance = (p.square() * self.exponents.variance).sum(-1)
        variance = variance + (u**2 / 3) * (self.roundings + 1 + 3 * value.square())
        lean = (p * self.exponents.lean).sum(-1) + u * FUNCTION_UNITS * (
            1 + logged.squeeze(-1).abs()
        )
        error = RoundingError(bound, variance, lean)
        return value, error.mapped(lambda x: x.masked_fill(torch.isneginf(value), 0.0))

    @property
    def returned_lse(self) -> Known:
        """LSE as the call returns it."""
        return self.lse

    @cached_property
    def operand(self) -> tuple[float, Tensor]:
        """The unit roundoff of P as an operand, and what a weight may lose below its format."""
        own = self.precision.weights or self.precision.accumulate
        unit = 0.0 if self.precision.weights is None else own.unit
        scale = (self._largest.squeeze(-1) - self.lse[0]).exp().nan_to_num(posinf=0.0)
        return unit, own.vanishing * scale[..., None] * ~self.hidden

    @cached_property
    def unstored(self) -> Known:
        """[H, s_q, d_v] o before it is rounded into its format."""
        p, v, u = self.weights, self.v, self.unit
        o = p @ v
        unit, vanishing = self.operand
        gamma = self.precision.accumulate.gamma(self.roundings + 3)
        off = p * ((1 + self._relative) * (1 + unit) * (1 + gamma) - 1) + vanishing
        t = self._total_error
        bound = torch.where(t < 0.5, (off @ v.abs() + o.abs() * t) / (1 - t), torch.inf)
        bound = bound + 2 * u * o.abs()
        squares = p.square()
        moved = squares * self.exponents.variance
        spread = moved @ v.square() - 2 * o * (moved @ v) + o.square() * moved.sum(-1, keepdim=True)
        terms = squares @ v.square()
        sums = u**2 / 3 * (terms + partial_sums(terms, o, max(p.shape[-1], 1)) + 3 * o.square())
        sums = sums + u**2 / 3 * self.roundings * o.square()
        variance = spread.clamp(min=0) + unit**2 / 3 * terms + sums
        lean = (p * self.exponents.lean) @ v.abs() + vanishing @ v.abs()
        if (stored := self.precision.product) is not None:
            bound = bound + stored.unit * (p @ v.abs() + bound) + vanishing @ v.abs()
            variance = variance + stored.unit**2 / 3 * (terms + o.square())
        return o, RoundingError(bound, variance, torch.minimum(lean, bound))

    @cached_property
    def o(self) -> Known:
        """[H, s_q, d_v] o as it is returned."""
        o, error = self.unstored
        stored = self.precision.stored
        return o, error if stored is None else error.returned(o, stored)

    def backward(self, d_o: Tensor, d_lse: Tensor | None) -> tuple[Known, ...]:
        """dq, dk and dv, before they are rounded into their format."""
        return Backward(self, d_o, d_lse).gradients()
