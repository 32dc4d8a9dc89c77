"""What a caller can see and touch of a kernel's own memory, and what stands between."""

from __future__ import annotations

from typing import Final, Literal, get_args

Channel = Literal["memory", "objects", "results", "buffers"]
"""The bytes that an input lies in, with its strides, its gaps and its address; the tensor objects
themselves; the memory of what the kernel returned; what torch allocates while it runs."""

CHANNELS: Final[tuple[Channel, ...]] = get_args(Channel)


def all_behind(reason: str) -> dict[Channel, str]:
    """Barriers of a kernel that never sees a tensor of torch, nor returns one."""
    return dict.fromkeys(CHANNELS, reason)
