"""Ways to invert I + A, A strictly lower: equal exactly, far apart in sixteen bits.

Math: 4. Substitution keeps intermediates as small as the result. Powers of A grow like |A|^k before
they cancel: on coherent keys the doubling ways lose everything in formats that hold few digits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor

Dot = Callable[[Tensor, Tensor], Tensor]
Inverse = Callable[[Tensor], Tensor]
Solve = Callable[[Tensor, Dot], Tensor]


def identity(like: Tensor) -> Tensor:
    """I in the shape of `like`."""
    return torch.eye(like.shape[-1], dtype=like.dtype, device=like.device).expand_as(like)


def by_rows(A: Tensor, dot: Dot) -> Tensor:
    """Row by row: R_i = e_i - A_i R."""
    R = identity(A).clone()
    for i in range(1, R.shape[-1]):
        R[..., i : i + 1, :i] = -dot(A[..., i : i + 1, :i], R[..., :i, :i])
    return R


def by_columns(A: Tensor, dot: Dot) -> Tensor:
    """By columns: once R_j is known, A_ij R_j leaves later rows; sums are in order, in A's type."""
    R = identity(A).clone()
    for j in range(R.shape[-1] - 1):
        # Autograd keeps the row, which must not change with R.
        row = R[..., j : j + 1, : j + 1].clone()
        R[..., j + 1 :, : j + 1] -= dot(A[..., j + 1 :, j : j + 1], row)
    return R


def by_library(A: Tensor) -> Tensor:
    """As torch's library does it."""
    return torch.linalg.solve_triangular(A, identity(A), upper=False, unitriangular=True)


def by_blocks(A: Tensor, dot: Dot, *, size: int, own: Inverse = by_library) -> Tensor:
    """By blocks: diagonal ones by `own`, those left of it by R_ij = -R_ii sum_m A_im R_mj.

    A neighbour is taken as -(R_ii A_ij) R_jj: with coherent keys the order of the two products
    decides where the rounding goes.
    """
    R = torch.zeros_like(A)

    def known(rows: slice, columns: slice) -> Tensor:
        # Autograd keeps the block, which must not change with R.
        return R[..., rows, columns].clone()

    for first in range(0, R.shape[-1], size):
        rows = slice(first, first + size)
        R[..., rows, rows] = own(A[..., rows, rows])
        if first:
            neighbour, before = slice(first - size, first), slice(0, first - size)
            R[..., rows, neighbour] = -dot(
                dot(known(rows, rows), A[..., rows, neighbour]), known(neighbour, neighbour)
            )
            left = dot(A[..., rows, :first], known(slice(first), before))
            R[..., rows, before] = -dot(known(rows, rows), left)
    return R


def by_neumann(A: Tensor, dot: Dot) -> Tensor:
    """By doubling: (I - A)(I + A^2)(I + A^4)..., which ends with the power that is 0."""
    product, power = identity(A) - A, A
    for _ in range(_doublings(A)):
        power = dot(power, power)
        product = product + dot(product, power)
    return product


def by_newton(A: Tensor, dot: Dot) -> Tensor:
    """Newton's R <- R (2 I - (I + A) R) from I - A, exact after as many steps as doublings."""
    guess, whole = identity(A) - A, identity(A) + A
    for _ in range(_doublings(A)):
        guess = dot(guess, 2 * identity(A) - dot(whole, guess))
    return guess


def _doublings(A: Tensor) -> int:
    # (I - A) is right up to A^1; each doubling squares what is left, and A^n = 0.
    return max(0, (A.shape[-1] - 1).bit_length() - 1)


SUBSTITUTIONS: Final[Mapping[str, Solve]] = {
    "rows": by_rows,
    "blocks of 8": functools.partial(by_blocks, size=8),
    "blocks of 16": functools.partial(by_blocks, size=16),
    "blocks of 32": functools.partial(by_blocks, size=32),
}
"""The ways that are as good as the formats they are carried out in, by name."""

SOLVES: Final[Mapping[str, Solve]] = {**SUBSTITUTIONS, "Neumann": by_neumann, "Newton": by_newton}
"""Every way."""
