"""How large an error is: the statistics of every verdict, alike for kernel and references."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kdaverify.budgets.bias import biases
from kdaverify.budgets.constants import RELATIVE_FLOOR
from kdaverify.budgets.formats import Format
from oracles.enclosure import Enclosure

# Elements of the runs that are measured together: more no longer fit a core's cache.
ELEMENTS_AT_ONCE = 2**18


@dataclass(frozen=True)
class ErrorStatistics:
    """The error of one output.

    Args:
        rms, largest: over all elements, absolute.
        rows: [rows] rms over the last axis: tokens of o, key channels of S_T.
        bias: by which fraction of itself the output is too large or too small as a whole.
        median, tail: 50 % and 99 % quantile of relative errors above the floor; 0 without any.
        normalised: rms of errors in deviations of a model of them; 0 where there is none.
    """

    rms: float
    largest: float
    rows: Tensor
    median: float
    tail: float
    bias: float = 0.0
    normalised: float = 0.0

    def value(self, name: str, row: int) -> float:
        """One statistic by name; "row" is that of the given row, 0 where the output has none."""
        if name == "row":
            return float(self.rows[row]) if self.rows.numel() else 0.0
        return getattr(self, name)


def rms(tensor: Tensor) -> float:
    """Root mean square, 0 for an empty tensor."""
    return float(_root_mean_square(tensor.flatten(), 0)) if tensor.numel() else 0.0


def rows_of(tensor: Tensor) -> Tensor:
    """[rows, columns] of a tensor; one of a single axis, as the gradient of a bias, is one row."""
    return tensor.flatten(0, -2) if tensor.ndim > 1 else tensor[None]


def row_rms(tensor: Tensor) -> Tensor:
    """[rows] root mean square over the last axis."""
    return _root_mean_square(rows_of(tensor), -1)


def _root_mean_square(tensor: Tensor, dim: int) -> Tensor:
    """Errors of states below 2^-511, whose squares underflow, are relative to the largest."""
    return _root_mean_square_of(tensor.abs(), dim)


def _root_mean_square_of(sizes: Tensor, dim: int) -> Tensor:
    """The same, from the sizes."""
    largest = sizes.amax(dim, keepdim=True)
    shares = sizes / largest.masked_fill((largest == 0) | largest.isinf(), 1.0)
    return shares.square_().mean(dim).sqrt_().mul_(largest.squeeze(dim))


def statistics(
    error: Tensor,
    truth: Enclosure,
    io: Format,
    *,
    lost: Tensor | float = 0.0,
    terms: Tensor | None = None,
) -> ErrorStatistics:
    """Statistics of `error` = kernel - exact.

    Args:
        error: float64, finite, the output's shape.
        truth: the exact output.
        io: the output's format; relative errors divide by its smallest normal number at least.
        lost: what underflow, or the rounding of a complement, may take from an element: one number
            or one an element; relative errors count what exceeds it.
        terms: the size of terms that cancel in an element: errors are then relative to them.
    """
    return statistics_of_runs([error], truth, io, lost=lost, terms=terms)[0]


def statistics_of_runs(
    errors: Sequence[Tensor],
    truth: Enclosure,
    io: Format,
    *,
    lost: Tensor | float = 0.0,
    terms: Tensor | None = None,
) -> list[ErrorStatistics]:
    """The same of several runs, small ones together: there operations are what costs."""
    if not truth.high.numel():
        return [ErrorStatistics(0.0, 0.0, row_rms(error), 0.0, 0.0) for error in errors]
    size = (truth.high.abs() if terms is None else torch.maximum(truth.high.abs(), terms)).flatten()
    (scored,) = (size > RELATIVE_FLOOR).nonzero(as_tuple=True)
    all_scored = len(scored) == len(size)
    divisors = (size if all_scored else size[scored]).clamp(min=io.min_normal)
    if isinstance(lost, Tensor):
        lost = lost.flatten()[scored]

    def of(group: Sequence[Tensor]) -> list[ErrorStatistics]:
        runs = group[0][None] if len(group) == 1 else torch.stack(list(group))
        flat = runs.flatten(1)
        sizes = flat.abs()
        of_scored = sizes if all_scored else sizes.index_select(1, scored)
        relative = (of_scored - lost).clamp_(min=0.0).div_(divisors)
        columns = (
            _root_mean_square_of(sizes, 1).tolist(),
            sizes.amax(1).tolist(),
            _root_mean_square_of(sizes.view(len(runs), -1, runs.shape[-1]), -1),
            *_quantiles(relative, 0.5, 0.99),
            biases(flat, truth.high.flatten()),
        )
        return [ErrorStatistics(*one) for one in zip(*columns, strict=True)]

    together = max(1, ELEMENTS_AT_ONCE // size.numel())
    return [
        one
        for first in range(0, len(errors), together)
        for one in of(errors[first : first + together])
    ]


def _quantiles(values: Tensor, *fractions: float) -> list[list[float]]:
    """Each row's lower quantiles, 0 without columns; torch.quantile refuses large tensors."""
    if not values.shape[1]:
        return [[0.0] * len(values) for _ in fractions]
    places = [math.ceil(fraction * values.shape[1]) - 1 for fraction in fractions]
    if values.device.type == "cpu":
        # The same numbers in a tenth of the time of kthvalue: 3 % of a smoke.
        ordered = torch.from_numpy(np.partition(values.numpy(), places, axis=1))
    else:
        # kthvalue has one block for a whole row, of 33 million errors at the largest sizes.
        ordered = values.sort(1).values
    return [ordered[:, place].tolist() for place in places]


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
