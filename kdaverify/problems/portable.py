"""Random numbers and elementary functions that give the same bits on every machine.

Only integer arithmetic and the five operations IEEE 754 rounds correctly (+ - * / sqrt) are used,
one array operation at a time; sums run in a stated order. Library logarithms, pairwise or
vectorised sums and matrix products differ between machines.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Integers: TypeAlias = npt.NDArray[np.int64]

_LN2 = 0.6931471805599453
_SQRT_HALF = 0.7071067811865476
# |s| <= 0.172: the first term that is left out is below 2^-70 of the sum.
_ATANH_TERMS = 12
# Three in a 64-bit integer.
_FIELD_BITS = 21


class Stream:
    """An endless list of 64-bit integers, one list for each name.

    Math: Philox-4x64-10 in counter mode; the key is the first 128 bits of the SHA-256 of the name.
    Two names never share numbers, so adding a tensor moves no other one; a longer draw begins with
    the shorter one.

    Args:
        names: what the stream is for, such as (seed, tensor, purpose).
    """

    def __init__(self, *names: object) -> None:
        digest = hashlib.sha256("\x1f".join(str(name) for name in names).encode()).digest()
        self._generator = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    def _raw(self, count: int) -> npt.NDArray[np.uint64]:
        return np.asarray(self._generator.random_raw(count), dtype=np.uint64)

    def uniform(self, *shape: int) -> Array:
        """Uniform on [0, 1): k / 2^53."""
        return _unit_interval(self._raw(_count(shape))).reshape(shape)

    def integers(self, below: int, *shape: int) -> Integers:
        """Integers of [0, below); the remainder's bias is below 2^-50 for so few choices."""
        return (self._raw(_count(shape)) % np.uint64(below)).astype(np.int64).reshape(shape)

    def normal(self, *shape: int) -> Array:
        """Normal-like: the sum of 12 uniforms minus 6 (Irwin-Hall), mean 0 to 3e-6, within 6.

        Twelve uniforms of 21 bits come from four 64-bit integers; a fifth fills the bits below
        2^-21.
        """
        block = np.ascontiguousarray(self._raw(5 * _count(shape)).reshape(-1, 5).T)
        mask = np.uint64(2**_FIELD_BITS - 1)
        total = np.zeros(block.shape[1], dtype=np.uint64)
        for column in range(4):
            for field in range(3):
                total += (block[column] >> np.uint64(_FIELD_BITS * field)) & mask
        return (
            (total.astype(np.float64) + _unit_interval(block[4])) * 2.0**-_FIELD_BITS - 6.0
        ).reshape(shape)


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _unit_interval(raw: npt.NDArray[np.uint64]) -> Array:
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


def log(x: Array) -> Array:
    """Natural logarithm of positive finite numbers, good to a few ulp.

    Math: x = m 2^e with m in [sqrt 1/2, sqrt 2), log x = e log 2 + 2 atanh((m - 1) / (m + 1)).
    """
    mantissa, exponent = np.frexp(x)
    low = mantissa < _SQRT_HALF
    mantissa = np.where(low, mantissa * 2.0, mantissa)
    exponent = exponent - low
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = np.zeros_like(s)
    for term in range(_ATANH_TERMS, -1, -1):
        series = series * square + 1.0 / (2 * term + 1)
    return exponent * _LN2 + 2.0 * s * series


def dot(x: Array, y: Array) -> Array:
    """Sum over the last axis of x * y, from the first element to the last."""
    return np.cumsum(x * y, axis=-1)[..., -1]


def unit(x: Array) -> Array:
    """Rows of the last axis scaled to Euclidean norm 1 (to rounding)."""
    return x / np.sqrt(dot(x, x))[..., None]
