"""Ball arithmetic on rows of numbers, and the way back to float64 tensors.

A float becomes a ball of radius 0; operations round to `flint.ctx.prec` bits and widen the radius
by what they lose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import numpy as np
import torch
from flint import arb, arb_mat, ctx
from numpy.typing import NDArray
from torch import Tensor

from oracles.enclosure import Enclosure

Row = list[arb]
Rows = list[Row]

ZERO = arb(0)
ONE = arb(1)
# Bits that hold any sum of float64 numbers exactly: 2^1024 down to 2^-1074, and room for the
# carries of 2^900 terms.
EXACT_SUM_BITS = 3000


def floats(tensor: Tensor) -> list[Any]:
    """A tensor as nested lists of float, exactly."""
    return tensor.detach().double().cpu().numpy().tolist()


def exact(tensor: Tensor) -> Rows:
    """A matrix as balls of radius 0."""
    return [[arb(x) for x in row] for row in floats(tensor)]


def matrix(rows: Rows) -> arb_mat:
    return arb_mat(len(rows), len(rows[0]), [*chain.from_iterable(rows)])


def times(a: Rows, b: Rows) -> Rows:
    """Elementwise product."""
    return [
        [x * y for x, y in zip(row, other, strict=True)] for row, other in zip(a, b, strict=True)
    ]


def of_each(function: Callable[[arb], arb], row: Row) -> Row:
    """`function` of every number; once where all are one object, as shared gates' sums are."""
    first = row[0] if row else None
    if all(x is first for x in row):
        return [function(row[0])] * len(row)
    return [function(x) for x in row]


def accumulate(total: Row, gates: list[float | arb]) -> Row:
    """The sums of gates after one more token; one object where all channels share theirs."""
    first, many = total[0], len(total)
    shared = all(s is first for s in total) and all(g == gates[0] for g in gates)
    # Exact, so that a gate of -1e38 costs the gates after it nothing.
    with ctx.workprec(EXACT_SUM_BITS):
        if shared:
            return [ZERO if gates[0] == -math.inf else first + gates[0]] * many
        return [ZERO if g == -math.inf else s + g for s, g in zip(total, gates, strict=True)]


def inverse(x: arb) -> arb:
    return ONE / x


def scale_rows(factors: Iterable[arb], rows: Rows) -> Rows:
    """Diag(factors) times the matrix."""
    return [[factor * x for x in row] for factor, row in zip(factors, rows, strict=True)]


def enclose(balls: arb_mat) -> Enclosure:
    """Two float64 and a radius, rounded up, for every ball of a matrix.

    A ball outside the range of float64 comes back as 0 with an infinite radius: nothing is proven.
    """
    values = balls.entries()
    high = _midpoints(values)
    rest = [x - y for x, y in zip(values, high.tolist(), strict=True)]
    low = _midpoints(rest)
    left = [x - y for x, y in zip(rest, low.tolist(), strict=True)]
    # float() rounds to nearest, to 0 below the subnormals: one step up bounds it; only an exact 0
    # stays.
    upper = np.nextafter(np.array([float(x.abs_upper()) for x in left]), np.inf)
    upper[np.isnan(upper)] = np.inf
    radius = np.where([x.is_zero() for x in left], 0.0, upper)
    zero = (radius == 0) & (high == 0) & (low == 0)
    shape = (balls.nrows(), balls.ncols())
    return Enclosure(*(torch.as_tensor(part.reshape(shape)) for part in (high, low, radius, zero)))


def _midpoints(balls: Row) -> NDArray[np.float64]:
    """The midpoints in float64; 0 where out of range."""
    values = np.array([float(x) for x in balls])
    values[~np.isfinite(values)] = 0.0
    return values
