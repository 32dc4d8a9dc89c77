"""Memory that two processes see: tensors are laid out in it by one and viewed by the other."""

from __future__ import annotations

import ctypes
import math
import mmap
import os
import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

ALIGNMENT: Final = 256
SMALLEST: Final = 1 << 20

# Four times as fast as torch.equal, which is a third of what a call costs.
_memcmp: Final = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


@dataclass(frozen=True)
class ArenaSlot:
    """Where a tensor lies in an arena, in memory of its own.

    Args:
        offset: of its first byte.
        stride: in elements, without gaps.
    """

    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    @property
    def end(self) -> int:
        return self.offset + math.prod(self.shape) * self.dtype.itemsize


class Arena:
    """A nameless file mapped by both processes; it grows and is reused: its pages stay warm.

    The system frees it with the last process that holds it: nothing can leak.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._memory: mmap.mmap | None = None

    @classmethod
    def new(cls, name: str) -> Arena:
        arena = cls(os.memfd_create(name, os.MFD_CLOEXEC))
        weakref.finalize(arena, os.close, arena.fd)
        return arena

    def lay_out(self, tensors: Mapping[str, Tensor]) -> dict[str, ArenaSlot]:
        """Copies the tensors in, one behind the other, from wherever they lie."""
        places: dict[str, ArenaSlot] = {}
        offset = 0
        for name, tensor in tensors.items():
            # Without gaps, and in the order of the original's axes where it has none either: as a
            # clone would lie.
            stride = torch.empty_like(tensor, device="meta").stride()
            places[name] = ArenaSlot(offset, tensor.dtype, tuple(tensor.shape), stride)
            offset = -(-places[name].end // ALIGNMENT) * ALIGNMENT
        self._reserve(offset)
        for name, place in places.items():
            self.view(place).copy_(tensors[name])
        return places

    def view(self, place: ArenaSlot) -> Tensor:
        """The tensor that lies at `place`: the arena's memory, but a storage of its own."""
        count = math.prod(place.shape)
        if not count:
            return torch.empty_strided(place.shape, place.stride, dtype=place.dtype)
        flat = torch.frombuffer(
            self._mapped(place.end), dtype=place.dtype, count=count, offset=place.offset
        )
        return torch.empty(0, dtype=place.dtype).set_(
            flat.untyped_storage(), 0, place.shape, place.stride
        )

    def _reserve(self, size: int) -> None:
        if os.fstat(self.fd).st_size < size:
            os.ftruncate(self.fd, max(SMALLEST, 1 << (size - 1).bit_length()))

    def _mapped(self, size: int) -> mmap.mmap:
        """The whole file. An older, smaller mapping lives on for as long as a tensor lies in it."""
        if self._memory is None or len(self._memory) < size:
            self._memory = mmap.mmap(self.fd, 0)
        return self._memory


def bytes_of(tensor: Tensor) -> Tensor:
    """All bytes of the memory that a tensor lies in."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same bits; in different memory orders, the same values."""
    if a.stride() != b.stride() or not a.numel():
        return torch.equal(a, b)
    if a.device.type != "cpu":
        a, b = a.cpu(), b.cpu()
    if a.numel() != reach(a):
        # An axis of stride 0 has fewer bytes than elements: comparing these ends the process.
        a, b = a.contiguous(), b.contiguous()
    return _memcmp(a.data_ptr(), b.data_ptr(), a.nbytes) == 0


def reach(x: Tensor) -> int:
    """Elements from the first in memory to the last, gaps included; x has at least one."""
    return 1 + sum((size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True))
