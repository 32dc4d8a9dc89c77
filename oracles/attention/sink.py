"""Attention with a sink: a learned logit of each query head in the sum, without a value.

Math: a sink a is a key of score a whose value is 0. With o~ and LSE of the keys alone,
    o = o~ sigma(LSE - a)    LSE with the sink = ln(exp(LSE) + exp(a))    da = sum_i dS_i
Source: mla.md 1.6 and 1.9; Xiao et al., Efficient Streaming Language Models with Attention Sinks,
2023; gpt-oss.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from oracles.attention.exact import Attended, Softmax, enclosed
from oracles.attention.exact_backward import Backward
from oracles.attention.segment import Segment
from oracles.attention.softmax_precision import EXACT, Known, SoftmaxPrecision
from oracles.pointwise.rounding import RoundingError

ROUNDINGS = 4
"""Of a sink and of LSE on their way to a weight: the change of base, the difference, and those of
whoever multiplies o by a factor at the end."""


def softmax_of(segment: Segment, precision: SoftmaxPrecision = EXACT) -> Softmax:
    """Attention of a segment, with its sink if there is one."""
    kind = Softmax if segment.sink is None else SinkSoftmax
    return kind(segment, precision)


def attend_with_sink(segment: Segment) -> Attended:
    """Attention in float64 with a proven radius, LSE as the segment says."""
    softmax = softmax_of(segment)
    return Attended(enclosed(softmax.o), enclosed(softmax.returned_lse))


@final
@dataclass(frozen=True)
class SinkSoftmax(Softmax):
    """With one more key, the last, whose key and value are 0 and whose score is the sink."""

    @cached_property
    def sink(self) -> Tensor:
        """[H, 1, 1] In float64, 0 where it is -inf."""
        return self._given.masked_fill(torch.isneginf(self._given), 0.0)

    @property
    def _given(self) -> Tensor:
        assert self.segment.sink is not None
        return self.segment.sink.double().view(-1, 1, 1)

    @cached_property
    def alone(self) -> Softmax:
        """Of the keys alone."""
        return Softmax(replace(self.segment, sink=None), self.precision)

    @cached_property
    def k(self) -> Tensor:
        return pad(self.alone.k, (0, 0, 0, 1))

    @cached_property
    def v(self) -> Tensor:
        return pad(self.alone.v, (0, 0, 0, 1))

    @cached_property
    def hidden(self) -> Tensor:
        """[H, s_q, s_k + 1] A sink of -inf is none."""
        keys = (~self.segment.visible).expand(len(self.sink), -1, -1)
        return torch.cat((keys, torch.isneginf(self._given).expand(-1, keys.shape[1], 1)), -1)

    @cached_property
    def scores(self) -> Known:
        s, error = self.alone.scores
        level = self.alone.lse[0].nan_to_num(neginf=0.0).abs()[..., None] + self.sink.abs()
        own = RoundingError.rounding(level, ROUNDINGS, self.precision.accumulate)
        sink = self.sink.expand_as(level)
        whole = RoundingError.joined([error, own], lambda parts: torch.cat(parts, -1))
        return torch.cat((s, sink), -1), whole

    @property
    def returned_lse(self) -> Known:
        return self.lse if self.segment.lse_includes_sink else self.alone.lse

    def backward(self, d_o: Tensor, d_lse: Tensor | None) -> tuple[Known, ...]:
        """dq, dk, dv and da [H]: the last is that of the sink.

        Where LSE is that of the keys alone, its cotangent moves keys alone.
        """
        if d_lse is None or self.segment.lse_includes_sink:
            return SinkBackward(self, d_o, d_lse).gradients()
        *of_o, d_sink = SinkBackward(self, d_o, None).gradients()
        of_lse = self.alone.backward(torch.zeros_like(d_o), d_lse)
        sums = [(x + y, e + f) for (x, e), (y, f) in zip(of_o, of_lse, strict=True)]
        return (*sums, d_sink)


@final
@dataclass(frozen=True)
class SinkBackward(Backward):
    """Its backward: the key and the value of the sink are no inputs, its score is."""

    def gradients(self) -> tuple[Known, ...]:
        dq, *of_keys = super().gradients()
        inner = [(x[:, :-1], error.mapped(lambda x: x[:, :-1])) for x, error in of_keys]
        return (dq, *inner, self._d_sink())

    def _d_sink(self) -> Known:
        """[H] dS of the sink, summed over the rows."""
        soft = self.softmax
        ds, bound, variance = (x[..., -1] for x in self.d_scores)
        p, (_, delta) = soft.weights[..., -1], self.delta
        variance = variance + p.square() * delta.variance.squeeze(-1)
        variance = variance + ds.square() * self.shared.variance.squeeze(-1)
        lean = p * delta.lean.squeeze(-1) + ds.abs() * soft.exponents.lean[..., -1]
        rows = max(ds.shape[1], 1)
        most = bound.sum(1)
        most = most + soft.precision.accumulate.gamma(rows) * (ds.abs().sum(1) + most)
        squares = variance.sum(1) + rows * (soft.unit * ds).square().sum(1) / 3
        error = RoundingError(most, squares, torch.minimum(lean.sum(1), most))
        return ds.sum(1), error
