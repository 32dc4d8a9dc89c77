"""Softmax attention in ball arithmetic and in decimal numbers of any precision: forms of tiny
segments that share no code with the float64 one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import mpmath
import torch
from flint import arb, arb_mat, ctx
from torch import Tensor

from oracles.attention.exact import Attended
from oracles.attention.segment import Segment
from oracles.certified.balls import enclose, floats
from oracles.enclosure import Enclosure

BITS: Final = 160
DIGITS: Final = 60
Row = tuple[list[Any], Any, Any]
"""o of a row, by column, its LSE over the keys, and that with the sink."""


class Elementary(NamedTuple):
    """Arithmetic of some kind of numbers: from a float, exponential and logarithm."""

    of: Callable[[float], Any]
    exp: Callable[[Any], Any]
    log: Callable[[Any], Any]


def by_balls(segment: Segment, *, bits: int = BITS) -> Attended:
    """Attention in balls, row by row, without subtracting a maximum.

    Math: o = sum_j exp(S_j) v_j / sum_j exp(S_j), LSE = ln sum_j exp(S_j); exponents of balls have
    no range to leave.
    Source: Johansson, Arb: efficient arbitrary-precision midpoint-radius interval arithmetic, 2017.
    """
    before, ctx.prec = ctx.prec, bits
    try:
        return _attended(segment, Elementary(arb, arb.exp, arb.log), _enclosed)
    finally:
        ctx.prec = before


def by_decimals(segment: Segment, *, digits: int = DIGITS) -> Attended:
    """The same in mpmath, rounded once to float64; the radius is that of the rounding."""
    with mpmath.workdps(digits):
        return _attended(segment, Elementary(mpmath.mpf, mpmath.exp, mpmath.log), _rounded)


def _attended(
    segment: Segment, numbers: Elementary, closed: Callable[[list[list[Any]]], Enclosure]
) -> Attended:
    H, s_q, _ = segment.q.shape
    q, k, v = (
        floats(x) for x in (segment.q, segment.of_heads(segment.k), segment.of_heads(segment.v))
    )
    visible = segment.visible.tolist()
    width = segment.v.shape[2]
    o = torch.zeros(H, s_q, width, dtype=torch.float64)
    parts = [o, o.clone(), o.clone(), torch.ones_like(o, dtype=torch.bool)]
    levels = [torch.full((H, s_q), -torch.inf, dtype=torch.float64)]
    levels += [torch.zeros(H, s_q, dtype=torch.float64) for _ in range(2)]
    levels += [torch.zeros(H, s_q, dtype=torch.bool)]
    for h in range(H):
        for i in range(s_q):
            keys = [j for j, seen in enumerate(visible[i]) if seen]
            sink = None if segment.sink is None else float(segment.sink[h])
            counted = sink is not None and math.isfinite(sink) and segment.lse_includes_sink
            if not keys and not counted:
                continue
            pairs = [(k[h][j], v[h][j]) for j in keys]
            row, alone, whole = _row(q[h][i], pairs, segment.scale, sink, numbers)
            row, level = row or [numbers.of(0.0)] * width, whole if counted else alone
            found = closed([[*row, level]])
            for part, value in zip(parts, _parts(found), strict=True):
                part[h, i] = value[0, :-1]
            for part, value in zip(levels, _parts(found), strict=True):
                part[h, i] = value[0, -1]
    return Attended(Enclosure(*parts), Enclosure(*levels))


def _parts(found: Enclosure) -> tuple[Tensor, ...]:
    return found.high, found.low, found.radius, found.zero


def _row(
    q: Sequence[float],
    keys: Sequence[tuple[Any, Any]],
    scale: float,
    sink: float | None,
    numbers: Elementary,
) -> Row:
    c, zero = numbers.of(scale), numbers.of(0.0)
    query = [numbers.of(x) for x in q]
    weights = [
        numbers.exp(c * sum((x * numbers.of(y) for x, y in zip(query, k, strict=True)), zero))
        for k, _ in keys
    ]
    of_keys = sum(weights, zero)
    total = of_keys
    if sink is not None and math.isfinite(sink):
        total = total + numbers.exp(numbers.of(sink))
    columns = zip(*(v for _, v in keys), strict=True)
    sums = [
        sum((w * numbers.of(x) for w, x in zip(weights, column, strict=True)), zero)
        for column in columns
    ]
    alone = numbers.log(of_keys) if keys else None
    return [x / total for x in sums], alone, numbers.log(total)


def _enclosed(rows: list[list[Any]]) -> Enclosure:
    return enclose(arb_mat(rows))


def _rounded(rows: list[list[Any]]) -> Enclosure:
    value = torch.tensor([[float(x) for x in row] for row in rows], dtype=torch.float64)
    radius = value.abs() * 2.0**-53 + 2.0**-1074
    return Enclosure(value, torch.zeros_like(value), radius, value == 0)
