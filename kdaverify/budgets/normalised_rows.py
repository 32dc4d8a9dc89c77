"""Rows of q and k that a kernel normalises itself, as it computes them, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.formats import Format
from oracles.double_double import Pair, dot, two_product, two_sum
from oracles.enclosure import Enclosure
from oracles.inputs import Inputs
from oracles.row_norm import norm_of

ROWS: Final = ("q", "k")
FLOAT64: Final = 2.0**-52
"""Spacing of float64 at 1."""
ROUNDINGS: Final = 8
"""Of float64, of a gradient beside its difference: of the root, its cube, and the products."""
Rounding = Callable[[Tensor, Format], Tensor]


def computed_rows(
    inputs: Inputs, contract: Contract, io: Format, keep: Rounding, lean: float = 0.0
) -> Inputs:
    """The call with q and k as a kernel makes them of its rows: in the accumulator's format, then
    in that of the operands, or of x where they are stored.

    Args:
        keep: the rounding to a format.
        lean: units by which 1 / sqrt is too large: that of an accelerator errs by two.
    """
    norm = norm_of(contract.qk)
    if norm is None:
        return inputs
    fmt = contract.accumulate

    def made(y: Tensor) -> Tensor:
        x = norm.rows(y)[0]
        squares = keep((x * x).sum(-1, keepdim=True), fmt)
        rate = keep(keep(squares + norm.eps, fmt).rsqrt() * (1 + lean * fmt.unit), fmt)
        rows = keep(x * rate, fmt)
        if contract.stores_rows:
            rows = keep(rows, io if norm.stored else contract.operands)
        # What the kernel computed, with the gradient of what it stands for.
        return y + (rows - y).detach()

    return replace(inputs, **{name: made(getattr(inputs, name).double()) for name in ROWS})


def row_gradient(
    dy: Tensor, y: Tensor, call: Tensor, contract: Contract, dtype: torch.dtype
) -> Tensor:
    """dq or dk with respect to what the kernel gets.

    Args:
        y: the rows that the kernel went on with; call: the exact ones.
        dtype: computed in.
    """
    norm = norm_of(contract.qk)
    assert norm is not None
    exact = call.double()
    rate, size = norm.rows(exact)[1], exact.square().sum(-1, keepdim=True)
    # The kernel's own 1 / sqrt is in the length of its rows.
    rate = rate * torch.where(size > 0, (y * exact).sum(-1, keepdim=True) / size, 1.0)
    return norm.gradient(dy.to(dtype), y.to(dtype), rate.to(dtype)).double()


def exact_row_gradient(exact: Enclosure, y: Tensor, contract: Contract) -> Enclosure:
    """dq or dk with respect to what the kernel gets, from that with respect to unit rows.

    Math: 6; dx = (dy (|x|^2 + eps) - x (x dy)) / (|x|^2 + eps)^(3/2). Rows of one element leave eps
    dy of the difference, 1e-8 of its terms: in float64 alone no radius was small enough.
    """
    norm = norm_of(contract.qk)
    assert norm is not None
    x, rate = norm.rows(y.double())
    dy, rest = exact.high, exact.low
    squares, along = dot(x, x), dot(x, dy)
    size = _plus(squares, norm.eps)
    kept, taken = _times(dy, size), _times(x, along)
    left, of_left = two_sum(kept[0], -taken[0])
    small = rest * size[0].unsqueeze(-1) - x * (x * rest).sum(-1, keepdim=True)
    high = (left + (of_left + (kept[1] - taken[1]) + small)) * rate**3
    return Enclosure(
        high, torch.zeros_like(high), _row_radius(exact, high, x * rate, rate), _zero_rows(exact)
    )


def _row_radius(exact: Enclosure, high: Tensor, y: Tensor, rate: Tensor) -> Tensor:
    """How far dx may be from `high`: by dy's radius and by roundings of the difference."""
    size = exact.high.abs() + exact.low.abs()
    carried, made = (
        part + y.abs() * (y.abs() * part).sum(-1, keepdim=True) for part in (exact.radius, size)
    )
    terms = y.shape[-1] + ROUNDINGS
    return rate * (carried + terms * FLOAT64**2 * made) + ROUNDINGS * FLOAT64 * high.abs()


def _zero_rows(exact: Enclosure) -> Tensor:
    return exact.zero.all(-1, keepdim=True).expand_as(exact.zero)


def _plus(a: Pair, b: float) -> Pair:
    total, rest = two_sum(a[0], torch.full_like(a[0], b))
    return total, rest + a[1]


def _times(rows: Tensor, numbers: Pair) -> Pair:
    """Rows [..., K] times a number of each."""
    high, low = (part.unsqueeze(-1) for part in numbers)
    product, rest = two_product(*torch.broadcast_tensors(rows, high))
    return product, rest + rows * low
