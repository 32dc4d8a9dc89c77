"""Tiny kernels whose results are known bit for bit. Imports Triton: for `self_test` alone."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl


@triton.jit
def convert(source: Any, target: Any, N: tl.constexpr) -> None:
    """target = source, in the format of target."""
    i = tl.arange(0, N)
    tl.store(target + i, tl.load(source + i).to(target.dtype.element_ty))


@triton.jit
def arithmetic(a: Any, b: Any, total: Any, product: Any, N: tl.constexpr) -> None:
    """a + b and a * b, in the format of a and b."""
    i = tl.arange(0, N)
    x, y = tl.load(a + i), tl.load(b + i)
    tl.store(total + i, x + y)
    tl.store(product + i, x * y)


@triton.jit
def order(a: Any, b: Any, less: Any, larger: Any, N: tl.constexpr) -> None:
    """Whether a < b, and the larger one; a number is larger than NaN."""
    i = tl.arange(0, N)
    x, y = tl.load(a + i), tl.load(b + i)
    tl.store(less + i, (x < y).to(tl.int32))
    tl.store(larger + i, tl.maximum(x, y))


@triton.jit
def constant(target: Any, N: tl.constexpr) -> None:
    """A third, in the format of target."""
    tl.store(target + tl.arange(0, N), tl.full((N,), 1 / 3, target.dtype.element_ty))


@triton.jit
def product(a: Any, b: Any, target: Any, N: tl.constexpr) -> None:
    """The matrix product of a and b, [N, N] each, accumulated in fp32."""
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(target + at, tl.dot(tl.load(a + at), tl.load(b + at)).to(target.dtype.element_ty))


@triton.jit
def reduction(source: Any, total: Any, largest: Any, M: tl.constexpr, N: tl.constexpr) -> None:
    """The sum and the largest element of every row of source [M, N], in its format."""
    rows, columns = tl.arange(0, M), tl.arange(0, N)
    x = tl.load(source + rows[:, None] * N + columns[None, :])
    tl.store(total + rows, tl.sum(x, axis=1))
    tl.store(largest + rows, tl.max(x, axis=1).to(largest.dtype.element_ty))
