"""The short convolution of q, k, v: depthwise, causal, W columns; with a proven radius.

Math: y_t = act(b + sum_j w_j x_{t-W+1+j}), x before a sequence from its state, zeros without one;
act is SiLU or none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import ClassVar, Final

import torch
from torch import Tensor

from oracles.pointwise.rounding import FLOAT64, Activation, Precision, RoundingError, partial_sums
from oracles.signature import CallSignature, Role, TensorCall, TensorRole

SIGNATURE: Final = CallSignature(
    inputs=(
        TensorRole("x", Role.TOKEN, ("B", "T", "D"), "dx"),
        TensorRole("weight", Role.PARAMETER, ("D", "W"), "dweight"),
        TensorRole("bias", Role.PARAMETER, ("D",), "dbias", optional=True),
        TensorRole("initial_state", Role.STATE, ("N", "D", "W"), "d_initial_state", optional=True),
        TensorRole("cu_seqlens", Role.OFFSETS, ("N + 1",), optional=True),
    ),
    outputs=(
        TensorRole("y", Role.TOKEN, ("B", "T", "D"), "dy"),
        TensorRole("final_state", Role.STATE, ("N", "D", "W"), "d_final_state"),
    ),
)


@dataclass(frozen=True)
class ShortConvCall(TensorCall):
    """One call.

    Args:
        x: [B, T, D]; weight: [D, W]; bias: [D] or None.
        initial_state: [N, D, W], oldest column first, or None; its column 0 is never read.
        cu_seqlens: [N + 1] offsets of a pack, where B = 1, or None.
        activation: silu or none.
    """

    op: ClassVar = "short_conv"
    signature: ClassVar = SIGNATURE

    x: Tensor
    weight: Tensor
    bias: Tensor | None = None
    initial_state: Tensor | None = None
    cu_seqlens: Tensor | None = None
    activation: str = "silu"

    @property
    def W(self) -> int:
        return self.weight.shape[1]

    @cached_property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """(first row, length) of every sequence, in rows of x flattened."""
        B, T, _ = self.x.shape
        if self.cu_seqlens is None:
            return tuple((b * T, T) for b in range(B))
        return tuple((first, end - first) for first, end in pairwise(self.cu_seqlens.tolist()))

    @property
    def lengths(self) -> tuple[int, ...]:
        return tuple(length for _, length in self.spans)

    @property
    def N(self) -> int:
        return len(self.spans)

    @property
    def state(self) -> Tensor:
        """The initial state, zeros where there is none."""
        if self.initial_state is not None:
            return self.initial_state
        return self.x.new_zeros(self.N, self.x.shape[2], self.W)


@dataclass(frozen=True)
class Taps:
    """Where every factor of a convolution comes from.

    Args:
        rows: tokens that belong to a sequence; sequence, place: of each, and its place in there.
    """

    call: ShortConvCall
    rows: Tensor
    sequence: Tensor
    place: Tensor

    @classmethod
    def of(cls, call: ShortConvCall) -> Taps:
        device, lengths = call.x.device, torch.tensor(call.lengths)
        firsts = torch.tensor([first for first, _ in call.spans])
        sequence = torch.repeat_interleave(torch.arange(call.N), lengths)
        place = torch.arange(len(sequence)) - (lengths.cumsum(0) - lengths)[sequence]
        return cls(
            call, *(found.to(device) for found in (firsts[sequence] + place, sequence, place))
        )

    def taken(self, x: Tensor, state: Tensor, j: int) -> Tensor:
        """[rows, D] The factor of w_j: of x [B T, D], or of the state [N, D, W]."""
        back = self.call.W - 1 - j
        inside = self.place >= back
        ahead = x[(self.rows - back).clamp(min=0)]
        column = (self.call.W + self.place - back).clamp(max=self.call.W - 1)
        return torch.where(inside[:, None], ahead, state[self.sequence, :, column])

    def given(self, e: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The transpose: [B T, D] and [N, D, W], sums of what the elements were factors of."""
        x, W = self.call.x, self.call.W
        dx = e.new_zeros(x.shape[0] * x.shape[1], x.shape[2])
        dstate = e.new_zeros(self.call.N, x.shape[2], W)
        for j in range(W):
            back, term = W - 1 - j, e * weight[:, j]
            inside = self.place >= back
            dx.index_add_(0, (self.rows - back)[inside], term[inside])
            before = ~inside
            dstate[self.sequence[before], :, (W + self.place - back)[before]] += term[before]
        return dx, dstate

    def last(self, x: Tensor, state: Tensor) -> Tensor:
        """[N, D, W] The last W columns of state and sequence."""
        found = state.clone()
        for n, (first, length) in enumerate(self.call.spans):
            if length:
                taken = min(length, self.call.W)
                old = state[n, :, length : self.call.W]
                found[n] = torch.cat((old, x[first + length - taken : first + length].mT), 1)
        return found

    def handed_back(self, d_final: Tensor) -> tuple[Tensor, Tensor]:
        """The transpose of `last`."""
        x, W = self.call.x, self.call.W
        dx, dstate = d_final.new_zeros(x.shape[0] * x.shape[1], x.shape[2]), d_final.clone()
        for n, (first, length) in enumerate(self.call.spans):
            if length:
                taken = min(length, W)
                dx[first + length - taken : first + length] = d_final[n, :, W - taken :].mT
                dstate[n] = torch.nn.functional.pad(d_final[n, :, : W - taken], (taken, 0))
        return dx, dstate


@dataclass(frozen=True)
class ConvPrecision:
    """How a kernel computes.

    Args:
        accumulate: sums and functions; result: what is returned.
        z: what the pre-activation is stored in on the way to y; None: it is not.
        z_backward: the same in the backward.
        dz: what its gradient is stored in.
        terms: what the terms of dx, one of each tap, and their partial sums are stored in.
        partials: what the partial sums of gradients of weight and bias are stored in.
        sequences: what those of every sequence, and their running sums, are stored in.
        casts: what the gradient of each use of z is stored in.
        beside_one: as of `Activation`.
    """

    accumulate: Precision
    result: Precision
    z: Precision | None = None
    z_backward: Precision | None = None
    dz: Precision | None = None
    terms: Precision | None = None
    partials: Precision | None = None
    sequences: Precision | None = None
    casts: Precision | None = None
    beside_one: bool = False


EXACT: Final = ConvPrecision(FLOAT64, FLOAT64)
Results = dict[str, tuple[Tensor, RoundingError]]
"""By output or gradient: its value in float64, and the error of a kernel."""


class ShortConv:
    """One call in float64, and the errors of a kernel that has the given precision."""

    def __init__(self, call: ShortConvCall, precision: ConvPrecision = EXACT) -> None:
        self.call = call
        self.wide = call.mapped(torch.Tensor.double, Role.TOKEN, Role.PARAMETER, Role.STATE)
        self.precision = precision
        self.taps = Taps.of(call)
        self._x, self._state = self.wide.x.flatten(0, 1), self.wide.state

    @cached_property
    def factors(self) -> list[Tensor]:
        return [self.taps.taken(self._x, self._state, j) for j in range(self.call.W)]

    @cached_property
    def z(self) -> Tensor:
        return sum(
            (self.wide.weight[:, j] * x for j, x in enumerate(self.factors)),
            self._bias.expand(len(self.taps.rows), -1),
        )

    @property
    def _bias(self) -> Tensor:
        bias = self.wide.bias
        return self.wide.weight.new_zeros(self.wide.weight.shape[0]) if bias is None else bias

    @cached_property
    def moduli(self) -> Tensor:
        """The sum of the moduli of the terms of z."""
        return sum(
            (self.wide.weight[:, j].abs() * x.abs() for j, x in enumerate(self.factors)),
            self._bias.abs(),
        )

    def _summed(self) -> RoundingError:
        """W products and at most W additions, in any order."""
        return RoundingError.rounding(self.moduli, self.call.W + 1, self.precision.accumulate)

    def _stored(self, stored: Precision | None) -> RoundingError:
        error = self._summed()
        return error if stored is None else error.returned(self.z, stored)

    @property
    def _act(self) -> Activation:
        return Activation(self.call.activation, self.z, self.precision.beside_one)

    def forward(self) -> Results:
        act, error = self._act, self._stored(self.precision.z)
        y, made = act.value, (act.moved(error) + act.error(self.precision.accumulate))
        made = made.returned(y, self.precision.result)
        final = self.taps.last(self._x, self._state)
        return {
            "y": (self._placed(y), made.mapped(self._placed)),
            "final_state": (final, RoundingError.none(final)),
        }

    def backward(self, cotangents: Mapping[str, Tensor]) -> Results:
        act, accumulate, result = self._act, self.precision.accumulate, self.precision.result
        if "dy" in cotangents:
            dy = cotangents["dy"].double().flatten(0, 1)[self.taps.rows]
        else:
            dy = torch.zeros_like(self.z)
        e = dy * act.slope
        rough = act.slope_error(accumulate) + act.slope_moved(
            self._stored(self.precision.z_backward)
        )
        off = rough.times(dy) + RoundingError.rounding(e, 1, accumulate)
        if self.precision.casts is not None:
            terms = [dy.abs() * part.abs() for part in act.slope_terms]
            off += RoundingError.of_terms(
                [term + off.bound for term in terms], self.precision.casts
            )
        off = off if self.precision.dz is None else off.returned(e, self.precision.dz)
        found = self._inputs_backward(e, off, cotangents)
        found["dweight"] = self._weight_backward(e, off)
        if self.call.bias is not None:
            found["dbias"] = self._total(e, off, torch.ones_like(e))
        kept = {
            name: found[name]
            for name, source in SIGNATURE.gradients.items()
            if getattr(self.call, source) is not None
        }
        return {
            name: (value, error.returned(value, result)) for name, (value, error) in kept.items()
        }

    def _inputs_backward(
        self, e: Tensor, off: RoundingError, cotangents: Mapping[str, Tensor]
    ) -> Results:
        weight = self.wide.weight
        result = self.precision.result
        accumulate = self.precision.accumulate
        terms = self.precision.terms
        passed = self.taps.handed_back(self._d_final(cotangents))
        parts = zip(("dx", "d_initial_state"), self.taps.given(e, weight), passed, strict=True)
        size = self.taps.given(e.abs() + off.bound, weight.abs())
        bound = self.taps.given(off.bound, weight.abs())
        variance = self.taps.given(off.variance, weight.square())
        lean = self.taps.given(off.lean, weight.abs())
        found = Results()
        for k, (name, own, beside) in enumerate(parts):
            error = RoundingError(bound[k], variance[k], lean[k], off.overflows)
            moduli = size[k] + torch.where(own != 0, beside.abs(), 0.0)
            error += RoundingError.rounding(moduli, self.call.W + 1, accumulate)
            if terms is not None:
                error += RoundingError.rounding(moduli, self.call.W + 1, terms)
            # Autograd adds the part that passes through the state in the type of x: the other part
            # is rounded to it before.
            error += RoundingError.rounding(torch.where(beside != 0, own, 0.0), 1, result)
            total = own + beside
            found[name] = (
                total.view_as(self.wide.x) if name == "dx" else total,
                self._shaped(error, name),
            )
        return found

    def _d_final(self, cotangents: Mapping[str, Tensor]) -> Tensor:
        if "d_final_state" in cotangents:
            return cotangents["d_final_state"].double()
        return torch.zeros_like(self._state)

    def _shaped(self, error: RoundingError, name: str) -> RoundingError:
        return self._viewed(error) if name == "dx" else error

    def _weight_backward(self, e: Tensor, off: RoundingError) -> tuple[Tensor, RoundingError]:
        columns = [self._total(e, off, x) for x in self.factors]
        stacked = partial(torch.stack, dim=1)
        error = RoundingError.joined([error for _, error in columns], stacked)
        return stacked([value for value, _ in columns]), error

    def _total(self, e: Tensor, off: RoundingError, x: Tensor) -> tuple[Tensor, RoundingError]:
        """Sums over all tokens of e times a factor, in any order."""
        n, accumulate, terms = len(e), self.precision.accumulate, e * x
        moduli, total = ((e.abs() + off.bound) * x.abs()).sum(0), terms.sum(0)
        passed_on = off.bound * x.abs()
        passed = off.times(x).mapped(lambda t: t.sum(0))
        sums = torch.maximum(
            partial_sums(terms.square().sum(0), total, n), terms.cumsum(0).square().sum(0)
        )
        variance = passed.variance + accumulate.unit**2 / 3 * (terms.square().sum(0) + sums)
        lost = accumulate.smallest * n * (moduli > 0)
        bound = passed.bound + accumulate.gamma(n + 1) * moduli + lost
        error = RoundingError(
            bound.nan_to_num(nan=0.0), variance, passed.lean + lost, passed.overflows
        )
        for part in self._stored_sums(terms, passed_on):
            error += part
        return total, error

    def _stored_sums(self, terms: Tensor, off: Tensor) -> Iterator[RoundingError]:
        """Of sums of terms, each off by at most `off`, that are stored on the way."""
        partials, sequences = self.precision.partials, self.precision.sequences
        if partials is not None:
            yield RoundingError.of_partials(terms, partials)
        if sequences is not None:
            parts, moduli = (self._by_sequence(x) for x in (terms, terms.abs() + off))
            filled = sum(length > 0 for length in self.call.lengths)
            # |sum t| is far below sum |t| where terms cancel within a sequence.
            grown = (
                self._by_sequence(off) + self.precision.accumulate.gamma(len(terms) + 1) * moduli
            )
            yield RoundingError.of_running_sum(parts, parts.abs() + grown, filled, sequences)

    def _by_sequence(self, rows: Tensor) -> Tensor:
        """[N, D] Sums over the tokens of every sequence."""
        return rows.new_zeros(self.call.N, rows.shape[1]).index_add_(0, self.taps.sequence, rows)

    def _placed(self, rows: Tensor) -> Tensor:
        """Rows of sequences in the shape of x, zeros elsewhere."""
        return torch.zeros_like(self._x).index_copy_(0, self.taps.rows, rows).view_as(self.wide.x)

    def _viewed(self, error: RoundingError) -> RoundingError:
        return error.mapped(lambda x: x.view_as(self.wide.x))
