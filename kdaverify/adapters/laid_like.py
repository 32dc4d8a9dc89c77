"""Converted values laid out as the caller's tensor, so that no strides are hidden."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

LARGEST: Final = 2**30
"""Bytes: memory of this extent, most of it never touched, is not made a second time."""


Memories = dict[tuple[int, torch.dtype], Tensor]
"""By the address of the caller's memory that each stands for."""


def laid_like(like: Tensor, values: Tensor, memories: Memories) -> Tensor:
    """The values with the strides and the offset of `like`, in memory of their own that holds NaN
    wherever no element is; as they are where that would take too much of it.

    Args:
        memories: of the tensors of this call so far: those that share memory still do.
    """
    room = like.untyped_storage().nbytes()
    if room > LARGEST or not like.is_floating_point():
        return values
    key = (like.untyped_storage().data_ptr(), values.dtype)
    if key not in memories:
        memories[key] = torch.full(
            (room // like.itemsize,), float("nan"), dtype=values.dtype, device=values.device
        )
    memory = memories[key]
    laid = memory.as_strided(like.shape, like.stride(), like.storage_offset())
    # One element of memory is written once, however often it is read.
    once = tuple(slice(None) if stride else slice(1) for stride in like.stride())
    laid[once].copy_(values[once])
    return laid
