"""In which formats somebody computes attention, and the error of a product there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from torch import Tensor

from oracles.pointwise.rounding import FLOAT64, Precision, RoundingError, partial_sums

Known = tuple[Tensor, RoundingError]
BLOCK: Final = 16
"""The smallest block of keys after which kernels rescale."""
SCALING: Final = 4
"""Roundings of a score beside its sum: the scale, its base, and the product of both."""


@dataclass(frozen=True)
class SoftmaxPrecision:
    """Who computes.

    Args:
        accumulate: of sums, exponentials and statistics.
        weights: what P and dS are rounded to as operands; None where they are not.
        stored: what o is rounded to, also where the backward reads it; None where it is not.
        scores: what the products of q and k are rounded to, one after another.
        query: what the scaled q is rounded to; None where it is not.
        product: what P V of a block is rounded to; None where it is not.
        d_scores: what P is rounded to before dS is made of it; None where it is not.
        row_sum: what P is rounded to before it is added up; None where it is not.
    """

    accumulate: Precision = FLOAT64
    weights: Precision | None = None
    stored: Precision | None = None
    scores: tuple[Precision, ...] = ()
    query: Precision | None = None
    product: Precision | None = None
    d_scores: Precision | None = None
    row_sum: Precision | None = None


EXACT: Final = SoftmaxPrecision()


def known_product(a: Tensor, b: Tensor, precision: Precision, extra: int) -> Known:
    """a @ b, and its error in any order of the sums, with `extra` roundings of the result."""
    n = a.shape[-1]
    value, moduli, squares = a @ b, a.abs() @ b.abs(), a.square() @ b.square()
    own = precision.unit**2 / 3
    variance = own * (squares + partial_sums(squares, value, n) + extra * value.square())
    lost = n * precision.vanishing * (moduli > 0)
    bound = precision.gamma(n + extra) * moduli + lost
    return value, RoundingError(bound, variance, lost)
