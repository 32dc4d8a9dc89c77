"""How large an error is: the statistics every verdict rests on, computed the same way for a kernel and for its family."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kdaverify.budgets.bias import bias
from kdaverify.budgets.formats import Format
from oracles.enclosure import Enclosure

# Elements smaller than this are judged by absolute error only.
RELATIVE_FLOOR = 2.0**-120


@dataclass(frozen=True)
class ErrorStatistics:
    """The error of one output.

    Args:
        rms, largest: over all elements, absolute.
        rows: [rows] rms over the last axis: tokens of o, key channels of S_T.
        bias: by which fraction of itself the output is too large or too small as a whole.
        median, tail: 50 % and 99 % quantile of the relative error of the elements above the floor; 0 where there are none.
    """

    rms: float
    largest: float
    rows: Tensor
    median: float
    tail: float
    bias: float = 0.0

    def value(self, name: str, row: int) -> float:
        """One statistic by name; "row" is that of the given row, 0 where the output has none."""
        if name == "row":
            return float(self.rows[row]) if self.rows.numel() else 0.0
        return getattr(self, name)


def rms(tensor: Tensor) -> float:
    """Root mean square, 0 for an empty tensor."""
    return math.sqrt(float(tensor.square().mean())) if tensor.numel() else 0.0


def row_rms(tensor: Tensor) -> Tensor:
    """[rows] root mean square over the last axis."""
    return tensor.flatten(0, -2).square().mean(-1).sqrt()


def statistics(error: Tensor, truth: Enclosure, io: Format, *, lost: float = 0.0, terms: Tensor | None = None) -> ErrorStatistics:
    """Statistics of `error` = kernel - exact.

    Args:
        error: float64, finite, the output's shape.
        truth: the exact output.
        io: format the output is stored in; relative errors divide by no less than its smallest normal number.
        lost: what underflow may take from an element; relative errors count what exceeds it.
        terms: the size of the terms that cancel in an element, where they do: errors are then relative to them.
    """
    size = truth.high.abs() if terms is None else torch.maximum(truth.high.abs(), terms)
    scored = size > RELATIVE_FLOOR
    relative = (error[scored].abs() - lost).clamp(min=0.0) / size[scored].clamp(min=io.min_normal)
    return ErrorStatistics(
        rms=rms(error),
        largest=float(error.abs().max()) if error.numel() else 0.0,
        rows=row_rms(error),
        median=_quantile(relative, 0.5),
        tail=_quantile(relative, 0.99),
        bias=bias(error, truth.high),
    )


def _quantile(values: Tensor, fraction: float) -> float:
    if not values.numel():
        return 0.0
    # The smallest value that at least `fraction` of all do not exceed; torch.quantile refuses large tensors.
    return float(values.kthvalue(max(1, math.ceil(fraction * values.numel()))).values)


def worst(candidates: list[ErrorStatistics]) -> ErrorStatistics:
    """The worst of every statistic over several kernels."""
    return ErrorStatistics(
        rms=max(s.rms for s in candidates),
        largest=max(s.largest for s in candidates),
        rows=torch.stack([s.rows for s in candidates]).amax(0),
        median=max(s.median for s in candidates),
        tail=max(s.tail for s in candidates),
        bias=max(s.bias for s in candidates),
    )
