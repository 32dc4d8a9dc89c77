"""Numbers in the formats numpy lacks: bf16 kept as its bits, TF32 kept in fp32."""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Floats: TypeAlias = NDArray[np.float32]
Bits: TypeAlias = NDArray[np.uint16]

QUIET_NAN: Final = np.uint16(0x7FC0)
TF32_LOST: Final = 13


def widen(bits: NDArray[Any]) -> Floats:
    """The fp32 numbers whose upper halves are `bits`: exact."""
    return np.left_shift(bits.astype(np.uint32), 16, dtype=np.uint32).view(np.float32)


def narrow(values: NDArray[Any]) -> Bits:
    """fp32 rounded to bf16, to nearest, ties to even; overflow gives infinity and NaN stays NaN."""
    values = np.asarray(values, dtype=np.float32)
    bits = values.view(np.uint32)
    rounded = ((bits + (((bits >> 16) & 1) + np.uint32(0x7FFF))) >> 16).astype(np.uint16)
    return np.where(np.isnan(values), QUIET_NAN, rounded)


def to_tf32(values: NDArray[Any]) -> Floats:
    """fp32 rounded to TF32's 10 stored bits, to nearest, ties to even; inf and NaN stay."""
    bits = np.asarray(values, dtype=np.float32).view(np.uint32)
    half = np.uint32((1 << (TF32_LOST - 1)) - 1)
    rounded = (bits + (((bits >> TF32_LOST) & 1) + half)) >> TF32_LOST << TF32_LOST
    return np.where(np.isfinite(values), rounded.view(np.float32), values)
