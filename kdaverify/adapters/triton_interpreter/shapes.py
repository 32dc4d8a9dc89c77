"""Extents of blocks: Triton's own compiler takes powers of two, Ascend's takes any, and says so in
its documentation of `arange`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any


def install(tl: Any, backend: str) -> None:
    """Lets kernels for Ascend have blocks of any extent;
    kernels for CUDA keep the limit that their compiler has.
    """
    if backend != "npu":
        return
    checked = tl.core.validate_block_shape

    def any_extent(shape: Sequence[int]) -> int:
        # types, and the limit of a block's size
        checked([1 << (extent - 1).bit_length() for extent in shape])
        return math.prod(shape)

    tl.core.validate_block_shape = any_extent
