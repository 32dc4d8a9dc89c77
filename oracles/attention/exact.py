"""Softmax attention and its backward in float64, with proven errors of every element.

The same formulas give the radius of the oracle and the bound of a kernel: only precisions differ.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, NamedTuple

import torch
from torch import Tensor

from oracles.attention.segment import Segment
from oracles.enclosure import Enclosure
from oracles.pointwise.rounding import (
    FLOAT64,
    FUNCTION_UNITS,
    Precision,
    RoundingError,
    partial_sums,
)

Known = tuple[Tensor, RoundingError]
BLOCK: Final = 16
"""The smallest block of keys after which kernels rescale."""
SCALING: Final = 4
"""Roundings of a score beside its sum: the scale, its base, and the product of both."""


@dataclass(frozen=True)
class SoftmaxPrecision:
    """Who computes.

    Args:
        accumulate: of sums, exponentials and statistics.
        weights: what P and dS are rounded to as operands; None where they are not.
        stored: what o is rounded to, also where the backward reads it; None where it is not.
        scores: what the products of q and k are rounded to, one after another.
        query: what the scaled q is rounded to; None where it is not.
        product: what P V of a block is rounded to; None where it is not.
        d_scores: what P is rounded to before dS is made of it; None where it is not.
        row_sum: what P is rounded to before it is added up; None where it is not.
    """

    accumulate: Precision = FLOAT64
    weights: Precision | None = None
    stored: Precision | None = None
    scores: tuple[Precision, ...] = ()
    query: Precision | None = None
    product: Precision | None = None
    d_scores: Precision | None = None
    row_sum: Precision | None = None


EXACT: Final = SoftmaxPrecision()


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
        product, error = _dot(self.q, self.k.mT, self.precision.accumulate, SCALING)
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


@dataclass(frozen=True)
class Backward:
    """The backward of a softmax, with P from the stored LSE and delta from the stored o."""

    softmax: Softmax
    d_o: Tensor
    d_lse: Tensor | None

    @cached_property
    def _dy(self) -> Tensor:
        return self.d_o.double()

    @cached_property
    def shared(self) -> RoundingError:
        """[H, s_q, 1] The error of the stored LSE, one number for a row of P."""
        return self.softmax.lse[1].mapped(lambda x: x[..., None])

    @cached_property
    def _relative(self) -> Tensor:
        """The largest relative error of a weight."""
        soft = self.softmax
        again = 2 * soft.unit * soft.lse[0].abs().nan_to_num(posinf=0.0)[..., None]
        return torch.expm1(soft.exponents.bound + self.shared.bound + again)

    @cached_property
    def delta(self) -> Known:
        """[H, s_q, 1] <d_o, o>."""
        (o, error), dy, accumulate = self.softmax.o, self._dy, self.softmax.precision.accumulate
        terms = (dy * o).abs().sum(-1, keepdim=True)
        squares = (dy * o).square().sum(-1, keepdim=True)
        bound = (dy.abs() * error.bound).sum(-1, keepdim=True)
        bound = bound + accumulate.gamma(o.shape[-1]) * (terms + bound)
        variance = (dy.square() * error.variance).sum(-1, keepdim=True)
        lean = (dy.abs() * error.lean).sum(-1, keepdim=True)
        value = (dy * o).sum(-1, keepdim=True)
        own = accumulate.unit**2 / 3 * (squares + partial_sums(squares, value, o.shape[-1]))
        return value, RoundingError(bound, variance + own, lean)

    @cached_property
    def _products(self) -> Known:
        """[H, s_q, s_k] d_o v^T."""
        return _dot(self._dy, self.softmax.v.mT, self.softmax.precision.accumulate, 0)

    @cached_property
    def d_scores(self) -> tuple[Tensor, Tensor, Tensor]:
        """[H, s_q, s_k] dS, its bound, and the variance of what differs from key to key."""
        soft, (dp, dp_error), (delta, delta_error) = self.softmax, self._products, self.delta
        p, u = soft.weights, soft.unit
        dl = torch.zeros_like(delta) if self.d_lse is None else self.d_lse.double()[..., None]
        inner = dp - delta + dl
        size = dp.abs() + delta.abs() + dl.abs()
        off = dp_error.bound + delta_error.bound + 3 * u * size
        ds = p * inner
        unit, vanishing = soft.operand
        times = 1 if soft.precision.d_scores is None else 2
        bound = ds.abs() * self._relative + p * (1 + self._relative) * off
        bound = bound + (times * unit + 2 * u) * (ds.abs() + bound)
        bound = bound + times * vanishing * (inner.abs() + off)
        variance = ds.square() * (soft.exponents.variance + (times * unit**2 + 2 * u**2) / 3)
        variance = variance + p.square() * (dp_error.variance + u**2 * size.square())
        return ds, bound, variance

    def gradients(self) -> tuple[Known, ...]:
        """dq, dk, dv."""
        return self._dq(), self._of_key_heads(self._dk()), self._of_key_heads(self._dv())

    def _of_key_heads(self, known: Known) -> Known:
        value, error = known
        add = self.softmax.segment.of_key_heads
        return add(value), error.mapped(add)

    def _dq(self) -> Known:
        soft, (ds, bound, variance) = self.softmax, self.d_scores
        k, c, accumulate = soft.k, soft.segment.scale, soft.precision.accumulate
        value, sizes = ds @ k, ds.abs() @ k.abs()
        off = bound @ k.abs()
        most = off + accumulate.gamma(soft.roundings + 2) * (sizes + off)
        mean = soft.weights @ k
        squares = variance @ k.square() + self.delta[1].variance * mean.square()
        squares = squares + self.shared.variance * value.square()
        terms = ds.square() @ k.square()
        squares = squares + soft.unit**2 / 3 * (
            partial_sums(terms, value, max(ds.shape[-1], 1)) + terms + 2 * value.square()
        )
        lean = self.delta[1].lean * mean.abs() + (soft.exponents.lean * ds.abs()) @ k.abs()
        error = RoundingError(abs(c) * most, c * c * squares, abs(c) * lean)
        return c * value, _capped(error)

    def _dk(self) -> Known:
        soft, (ds, bound, variance) = self.softmax, self.d_scores
        shared = soft.weights.square() * self.delta[1].variance
        shared = shared + ds.square() * self.shared.variance
        leaning = soft.weights * self.delta[1].lean + soft.exponents.lean * ds.abs()
        c = torch.tensor(soft.segment.scale, dtype=torch.float64)
        value, error = self._over_rows((ds, bound, variance + shared, leaning), soft.q)
        if soft.precision.query is not None:
            # dS^T q of the q that is scaled and stored
            own = RoundingError.rounding(soft.q, 1, soft.precision.query)
            sizes, squares = (ds.abs() + bound).mT, ds.square().mT
            error = error + own.mapped(lambda x: sizes @ x.to(sizes), lambda x: squares @ x)
        return c * value, error.times(c)

    def _dv(self) -> Known:
        soft = self.softmax
        unit, vanishing = soft.operand
        p = soft.weights
        bound = p * ((1 + self._relative) * (1 + unit) - 1) + vanishing
        variance = p.square() * (soft.exponents.variance + self.shared.variance + unit**2 / 3)
        leaning = p * (soft.exponents.lean + self.shared.lean) + vanishing
        return self._over_rows((p, bound, variance, leaning), self._dy)

    def _over_rows(self, a: tuple[Tensor, Tensor, Tensor, Tensor], x: Tensor) -> Known:
        """a^T x, of a with bound, variance and lean, added up over rows and heads of a group."""
        value, bound, variance, lean = (part.mT for part in a)
        accumulate = self.softmax.precision.accumulate
        n = x.shape[1] * self.softmax.segment.group
        off = bound @ x.abs()
        most = off + accumulate.gamma(n + 2) * (value.abs() @ x.abs() + off)
        total, terms = value @ x, value.square() @ x.square()
        own = accumulate.unit**2 / 3 * (partial_sums(terms, total, max(n, 1)) + terms)
        squares = variance @ x.square() + own
        return total, _capped(RoundingError(most, squares, lean @ x.abs()))


def _capped(error: RoundingError) -> RoundingError:
    """What leans is part of the bound."""
    return RoundingError(error.bound, error.variance, torch.minimum(error.lean, error.bound))


def _dot(a: Tensor, b: Tensor, precision: Precision, extra: int) -> Known:
    """a @ b, and its error in any order of the sums, with `extra` roundings of the result."""
    n = a.shape[-1]
    value, moduli, squares = a @ b, a.abs() @ b.abs(), a.square() @ b.square()
    own = precision.unit**2 / 3
    variance = own * (squares + partial_sums(squares, value, n) + extra * value.square())
    lost = n * precision.vanishing * (moduli > 0)
    bound = precision.gamma(n + extra) * moduli + lost
    return value, RoundingError(bound, variance, lost)
