"""The gradients again: the certified chunk form's slope, no derivative shared.

Along a direction the loss is an entire function of the step, so Cauchy's bound on a disc turns a
central difference into a proof.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from flint import arb, arb_mat
from torch import Tensor

from oracles.certified.balls import ZERO, Row, Rows, enclose, exact, matrix, scale_rows
from oracles.certified.chunk_form import in_chunks
from oracles.certified.heads import Gates, Head, each_head, precision
from oracles.enclosure import Enclosure
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS

CHUNK_SIZE = 64
# The disc of Cauchy's bound. Wide enough against steps of 2^-40 and less, narrow enough that the
# bound stays near the loss.
RADIUS = 2.0**-4


def directional(
    inputs: Inputs, cotangents: Cotangents, direction: Gradients[Tensor], *, bits: int
) -> Enclosure:
    """The loss's slope along a direction, by central differences in ball arithmetic.

    Math: section 3, with L(z) = <do, o> + <dS_T, S_T> at the inputs plus z times the direction, and
    h = 2^-(bits / 3):
        |L'(0) - (L(h) - L(-h)) / 2h| <= (M / r) x^2 / (1 - x^2),  x = h / r,  M >= |L(z)| for every
        complex |z| <= r
    M is L of the token recurrence with every number replaced by a bound of its modulus and every
    minus by a plus; the radius returned holds it. It grows up to 3^T, the radius with it: a third
    of the bits must pay for that.

    Args:
        inputs: the call; a hard reset stays one.
        cotangents: of o and S_T.
        direction: what to move each input along, of the shapes of the inputs.
        bits: precision of the midpoints; 384 give some thirty digits at forty tokens.
    Returns:
        Enclosure of one number.
    Raises:
        InputError: the cotangents do not fit the inputs.
        ValueError: bits is out of range.
    """
    do, dS = cotangents.of(inputs)
    shared = inputs.HV // inputs.H
    dg = direction.dg.expand(*direction.dg.shape[:3], inputs.K)
    moved = replace(
        direction,
        dq=direction.dq.repeat_interleave(shared, 2),
        dk=direction.dk.repeat_interleave(shared, 2),
        dg=dg,
    )
    with precision(bits):
        h, total = arb(2) ** -(bits // 3), ZERO
        x = h / RADIUS
        for n, j, rows, head in each_head(inputs):
            point, along = HeadInputs(head, exact(inputs.state[n, j])), _along(moved, n, j, rows)
            weights = exact(do.flatten(0, 1)[rows, j]), exact(dS[n, j])
            ahead, behind = (_loss(_moved(point, along, step), *weights) for step in (h, -h))
            rest = (
                _majorant(_widened(point, along), *map(_modulus, weights))
                / RADIUS
                * x**2
                / (1 - x**2)
            )
            total += (ahead - behind) / (2 * h) + arb(0, rest.abs_upper())
        return _scalar(total)


def slope(gradients: Gradients[Enclosure], direction: Gradients[Tensor], *, bits: int) -> Enclosure:
    """The slope along the direction by enclosed gradients: their inner product with it."""
    total = ZERO
    with precision(bits):
        for name in GRADIENTS:
            found, along = getattr(gradients, name), getattr(direction, name)
            parts = (
                x.double().flatten().tolist() for x in (found.high, found.low, found.radius, along)
            )
            total += sum(
                (
                    (arb(high, radius) + low) * d
                    for high, low, radius, d in zip(*parts, strict=True)
                ),
                ZERO,
            )
        return _scalar(total)


def _scalar(ball: arb) -> Enclosure:
    found = enclose(arb_mat(1, 1, [ball]))
    return Enclosure(
        found.high.squeeze(), found.low.squeeze(), found.radius.squeeze(), found.zero.squeeze()
    )


@dataclass(frozen=True)
class HeadInputs:
    """What one head reads, or the direction it is moved along: tokens, initial state [K][V]."""

    tokens: Head
    state: Rows


def _along(direction: Gradients[Tensor], n: int, j: int, rows: slice) -> HeadInputs:
    dq, dk, dv, dg, dbeta = (
        x.flatten(0, 1)[rows, j]
        for x in (direction.dq, direction.dk, direction.dv, direction.dg, direction.dbeta)
    )
    gates: Gates = [[*row] for row in exact(dg)]
    tokens = Head(
        exact(dq), exact(dk), exact(dv), gates, [b for (b,) in exact(dbeta[:, None])], ZERO
    )
    return HeadInputs(tokens, exact(direction.d_initial_state[n, j]))


def _moved(point: HeadInputs, along: HeadInputs, step: arb) -> HeadInputs:
    """The point plus `step` times the direction; a hard reset stays one."""
    x, d = point.tokens, along.tokens
    gates: Gates = [
        [a if a == -math.inf else a + step * b for a, b in zip(*rows, strict=True)]
        for rows in zip(x.g, d.g, strict=True)
    ]
    q, k, v, state = (
        _shift(*pair, step)
        for pair in ((x.q, d.q), (x.k, d.k), (x.v, d.v), (point.state, along.state))
    )
    return HeadInputs(Head(q, k, v, gates, _shift([x.beta], [d.beta], step)[0], x.scale), state)


def _shift(rows: Rows, along: Rows, step: arb) -> Rows:
    return [
        [x + step * d for x, d in zip(*pair, strict=True)] for pair in zip(rows, along, strict=True)
    ]


def _widened(point: HeadInputs, along: HeadInputs) -> HeadInputs:
    """Bounds of the moduli on the disc: |x| + r |d|; for the decay, exp of g + r |d|."""
    modulus = _bounds(point, point.tokens.g)
    return _moved(
        modulus, _bounds(along, [[abs(x) for x in row] for row in along.tokens.g]), arb(RADIUS)
    )


def _bounds(point: HeadInputs, gates: Gates) -> HeadInputs:
    x = point.tokens
    return HeadInputs(
        Head(
            _modulus(x.q),
            _modulus(x.k),
            _modulus(x.v),
            gates,
            [abs(b) for b in x.beta],
            abs(x.scale),
        ),
        _modulus(point.state),
    )


def _modulus(rows: Rows) -> Rows:
    return [[abs(x) for x in row] for row in rows]


def _loss(point: HeadInputs, do: Rows, dS: Rows) -> arb:
    outputs, final = in_chunks(point.tokens, matrix(point.state), CHUNK_SIZE)
    o = [row for block in outputs for row in block.tolist()]
    return _inner(do, o) + _inner(dS, final.tolist())


def _majorant(point: HeadInputs, do: Rows, dS: Rows) -> arb:
    x, total, state = point.tokens, ZERO, matrix(point.state)
    for t, gates in enumerate(x.g):
        decay: Row = [ZERO if g == -math.inf else arb(g).exp() for g in gates]
        state = matrix(scale_rows(decay, state.tolist()))
        k = matrix(x.k[t : t + 1])
        state = state + k.transpose() * ((matrix(x.v[t : t + 1]) + k * state) * x.beta[t])
        total += _inner([do[t]], (matrix(x.q[t : t + 1]) * state * x.scale).tolist())
    return total + _inner(dS, state.tolist())


def _inner(a: Rows, b: Rows) -> arb:
    return sum(
        (x * y for row, other in zip(a, b, strict=True) for x, y in zip(row, other, strict=True)),
        ZERO,
    )
