"""One sequence of one value head at a time, exact numbers in, enclosures out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from flint import arb, arb_mat, ctx
from torch import Tensor

from oracles.certified.balls import Row, Rows, enclose, exact, floats, matrix
from oracles.enclosure import CertifiedOutputs, Enclosure
from oracles.inputs import Inputs

Gates = list[list[float | arb]]


@dataclass(frozen=True)
class Head:
    """The tokens of one sequence as one value head sees them.

    Args:
        q, k: [T][K].
        v: [T][V].
        g: [T][K], a hard reset as the float -inf, which is no number of ball arithmetic.
        beta: [T].
        scale: factor of the output.
    """

    q: Rows
    k: Rows
    v: Rows
    g: Gates
    beta: Row
    scale: arb

    def rows(self, tokens: slice) -> Head:
        """Some tokens only."""
        return Head(
            self.q[tokens],
            self.k[tokens],
            self.v[tokens],
            self.g[tokens],
            self.beta[tokens],
            self.scale,
        )


# From a head and S_0 [K, V] to o, in blocks of consecutive tokens [c, V], and S_T [K, V].
Form = Callable[[Head, arb_mat], tuple[list[arb_mat], arb_mat]]


def over_heads(inputs: Inputs, form: Form, *, bits: int, method: str) -> CertifiedOutputs:
    """Run a form on each sequence and head at `bits` bits; restores flint's precision.

    Raises:
        ValueError: bits is not a precision.
    """
    o, final = zeros(inputs.B * inputs.T, inputs.HV, inputs.V), zeros(*inputs.state.shape)
    with precision(bits):
        for n, j, rows, head in each_head(inputs):
            if rows.start == rows.stop:
                write_exact(final, (n, j), inputs.state[n, j])
                continue
            blocks, state = form(head, matrix(exact(inputs.state[n, j])))
            first = rows.start
            for block in blocks:
                write(o, (slice(first, first + block.nrows()), j), block)
                first += block.nrows()
            write(final, (n, j), state)
    return CertifiedOutputs(reshape(o, inputs.v.shape), final, f"balls, {method}, {bits} bits")


def precision(bits: int) -> AbstractContextManager[object]:
    """Flint's global precision for a while.

    Raises:
        ValueError: bits is not a precision.
    """
    if bits < 2:
        raise ValueError(
            f"bits: wanted a precision of at least 2 bits, got {bits}; 128 is a good start"
        )
    return ctx.workprec(bits)


def each_head(inputs: Inputs) -> Iterator[tuple[int, int, slice, Head]]:
    """Every sequence, value head, rows in the [B * T] token axis, and tokens."""
    for n, (start, length) in enumerate(zip(inputs.starts, inputs.lengths, strict=True)):
        for j in range(inputs.HV):
            rows = slice(start, start + length)
            yield n, j, rows, _head(inputs, rows, j)


def _head(inputs: Inputs, tokens: slice, j: int) -> Head:
    key_head = j // (inputs.HV // inputs.H)
    q, k = (exact(x.flatten(0, 1)[tokens, key_head]) for x in (inputs.q, inputs.k))
    v = exact(inputs.v.flatten(0, 1)[tokens, j])
    g = floats(inputs.decays.flatten(0, 1)[tokens, j])
    beta = [arb(x) for x in floats(inputs.beta.flatten(0, 1)[tokens, j])]
    return Head(q, k, v, g, beta, arb(inputs.factor))


def zeros(*shape: int) -> Enclosure:
    """Nothing but proven zeros."""
    high, low, radius = torch.zeros(3, *shape, dtype=torch.float64)
    return Enclosure(high, low, radius, torch.ones(shape, dtype=torch.bool))


def reshape(x: Enclosure, shape: torch.Size) -> Enclosure:
    return Enclosure(
        x.high.reshape(shape), x.low.reshape(shape), x.radius.reshape(shape), x.zero.reshape(shape)
    )


def write(into: Enclosure, where: tuple[slice | int, int], block: arb_mat) -> None:
    """Put the balls of a matrix, [rows, width] or [K, V], at one place of an enclosure."""
    part = enclose(block)
    into.high[where], into.low[where] = part.high, part.low
    into.radius[where], into.zero[where] = part.radius, part.zero


def write_exact(into: Enclosure, where: tuple[slice | int, int], values: Tensor) -> None:
    """Put floats at one place of an enclosure that holds nothing but zeros: the balls of a hundred
    empty sequences took longer than those of all tokens beside them.
    """
    # -0 is the number 0.
    into.high[where] = values.double() + 0.0
    into.zero[where] = values == 0
