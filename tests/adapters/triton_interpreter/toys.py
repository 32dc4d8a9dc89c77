"""Small kernels that need one gap of the interpreter closed each.
Imported by processes that interpret, after activation.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

gather = tl.gather  # bound at import, as kernels' packages do


@triton.jit
def python_loop(out: Any, n: Any) -> None:
    """Counts with an index that has methods, up to a bound that is a tensor."""
    total = tl.zeros((1,), tl.int64)
    for i in range(n):
        # an int only where nothing is patched
        total += i.to(tl.int64)  # pyright: ignore[reportAttributeAccessIssue]
    tl.store(out + tl.arange(0, 1), total)


@triton.jit
def language_loop(out: Any, n: Any) -> None:
    """Every third number below n, summed."""
    total = tl.zeros((1,), tl.int64)
    for i in tl.range(0, n, 3, num_stages=2):
        total += i.to(tl.int64)
    tl.store(out + tl.arange(0, 1), total)


@triton.jit
def stepped(out: Any, n: Any) -> None:
    """The same without a start."""
    total = tl.zeros((1,), tl.int64)
    for i in tl.range(n, step=3):
        total += i.to(tl.int64)
    tl.store(out + tl.arange(0, 1), total)


@triton.jit
def numbered(out: Any, number: Any) -> None:
    """As many programs as `number` says, which a grid may fill."""
    tl.store(out + tl.program_id(0), tl.load(number))


@triton.jit
def gathered(source: Any, index: Any, out: Any, N: tl.constexpr) -> None:
    """out[i] = source[index[i]]."""
    i = tl.arange(0, N)
    tl.store(out + i, gather(tl.load(source + i), tl.load(index + i), 0))


@triton.jit
def scaled(source: Any, out: Any, factor: Any, CONSTANT: tl.constexpr) -> None:
    """The first element times an argument, and times a constant, as they are before any store."""
    x = tl.load(source)
    tl.store(out, (x * factor).to(tl.float32))
    tl.store(out + 1, (x * CONSTANT).to(tl.float32))


@triton.jit
def matmul(a: Any, b: Any, out: Any, N: tl.constexpr, PRECISION: tl.constexpr) -> None:
    """out = a b, with the input precision named."""
    i = tl.arange(0, N)
    at = i[:, None] * N + i[None, :]
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at), input_precision=PRECISION))


@triton.jit
def added(source: Any, out: Any) -> None:
    """Adds to out atomically."""
    tl.atomic_add(out, tl.load(source))


@triton.autotune(configs=[triton.Config({"BLOCK": 16 << i}) for i in range(3)], key=["n"])
@triton.jit
def tuned(out: Any, n: Any, BLOCK: tl.constexpr) -> None:
    """Returns which configuration it got."""
    tl.store(out, n + BLOCK)
