"""The backward of softmax attention in float64, with the errors of somebody who computes it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oracles.attention.softmax_precision import Known, known_product
from oracles.pointwise.rounding import RoundingError, partial_sums

if TYPE_CHECKING:
    from oracles.attention.exact import Softmax


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
        return known_product(self._dy, self.softmax.v.mT, self.softmax.precision.accumulate, 0)

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
