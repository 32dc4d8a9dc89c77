"""Rows of q and k that a kernel normalises itself, as it computes them, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.formats import Format
from oracles.enclosure import Enclosure
from oracles.inputs import Inputs
from oracles.row_norm import norm_of

ROWS: Final = ("q", "k")
FLOAT64: Final = 2.0**-52
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
    """dq or dk with respect to what the kernel gets, from that with respect to unit rows."""
    norm = norm_of(contract.qk)
    assert norm is not None
    y = y.double()
    rate = norm.rows(y)[1]
    size = exact.high.abs() + exact.low.abs()
    carried = exact.radius + y.abs() * (y.abs() * exact.radius).sum(-1, keepdim=True)
    made = size + y.abs() * (y.abs() * size).sum(-1, keepdim=True)
    high = norm.gradient(exact.high + exact.low, y, rate)
    radius = rate * (carried + (y.shape[-1] + 8) * FLOAT64 * made)
    zero = exact.zero.all(-1, keepdim=True).expand_as(exact.zero)
    return Enclosure(high, torch.zeros_like(high), radius, zero)
