"""Memory handed to native code by pointer: what it writes outside of it is seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

GUARD: Final = 512
"""Bytes before and after, also the alignment that is kept."""
PATTERN: Final = 0xA5


class OutOfBoundsError(RuntimeError):
    """A kernel wrote outside of a buffer it was given."""


class Guarded:
    """A zeroed tensor between two guards.

    Args:
        name: for people.
        shape, dtype, device: of the tensor.
    """

    def __init__(
        self, name: str, shape: Sequence[int], dtype: torch.dtype, device: torch.device
    ) -> None:
        size = torch.Size(shape).numel() * dtype.itemsize
        self.name = name
        self._memory = torch.full(
            (GUARD + size + GUARD,), PATTERN, dtype=torch.uint8, device=device
        )
        self._memory[GUARD : GUARD + size] = 0
        self.tensor: Tensor = self._memory[GUARD : GUARD + size].view(dtype).view(*shape)

    @property
    def pointer(self) -> int:
        return self._memory.data_ptr() + GUARD

    def check(self) -> None:
        """Raises OutOfBoundsError if a guard changed."""
        sides = {"before": self._memory[:GUARD], "after": self._memory[-GUARD:]}
        for side, guard in sides.items():
            count = int((guard != PATTERN).sum())
            if count:
                raise OutOfBoundsError(
                    f"{self.name}: the kernel changed {count} of the {GUARD} bytes {side} its"
                    f" {list(self.tensor.shape)}"
                )
