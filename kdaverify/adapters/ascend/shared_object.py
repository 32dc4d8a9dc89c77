"""A kernel in a shared object of the user's, called through ctypes; what it writes outside of its
buffers is seen.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.ascend.mega_kernel import (
    ARGUMENTS,
    CHUNK,
    ENTRY,
    POINTERS,
    BufferSizes,
    constants,
)
from kdaverify.adapters.base import AdapterError

DIGITS: Final = 12
GUARD: Final = 512
"""Bytes before and after a buffer, also the alignment that is kept."""
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


@dataclass(frozen=True, eq=False)
class SharedObject:
    """A loaded library and its entry point.

    Args:
        place: file name and the first digits of its SHA-256: what ran, for the record.
        function: the entry point.
    """

    place: str
    function: Any

    def run(
        self, inputs: Mapping[str, Tensor], *, blocks: int
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """One launch.

        Args:
            inputs: tokens and cu_seqlens, as the pointers want them, on the kernel's device.
            blocks: block_dim.
        Returns:
            The outputs by name, and the inputs as the kernel left them.
        Raises:
            OutOfBoundsError: it wrote outside of a buffer.
        """
        device, offsets = inputs["q"].device, inputs["cu_seqlens"].tolist()
        lengths = [end - start for start, end in pairwise(offsets)]
        HV, T = inputs["q"].shape[:2]
        sizes = BufferSizes(
            T, HV, chunks=sum(-(-length // CHUNK) for length in lengths), blocks=blocks
        )
        held = _buffers(sizes, {**constants(), **inputs}, device)
        _launch(self.function, held, sizes, len(lengths), device)
        for buffer in held.values():
            buffer.check()
        outputs = {
            pointer.name: held[pointer.name].tensor.clone()
            for pointer in POINTERS
            if pointer.role == "output"
        }
        return outputs, {name: held[name].tensor for name in inputs}


@functools.cache
def load(path: Path) -> SharedObject:
    """The library at `path`, loaded now and kept loaded.

    Raises:
        AdapterError: it is no shared object for this machine, or has no such entry point.
    """
    try:
        library = ctypes.CDLL(str(path.resolve()))
    except OSError as error:
        raise AdapterError(
            f"library: {path.name} cannot be loaded: {error}; compile it for this machine"
        ) from error
    function = getattr(library, ENTRY, None)
    if function is None:
        raise AdapterError(
            f'library: {path.name} has no function {ENTRY}; export it with extern "C"'
        )
    function.argtypes, function.restype = list(ARGUMENTS), None
    return SharedObject(
        f"{path.name} (sha256 {hashlib.sha256(path.read_bytes()).hexdigest()[:DIGITS]})", function
    )


def _buffers(
    sizes: BufferSizes, given: Mapping[str, Tensor], device: torch.device
) -> dict[str, Guarded]:
    held: dict[str, Guarded] = {}
    for pointer in POINTERS:
        value = given.get(pointer.name)
        shape = pointer.shape(sizes) if value is None else value.shape
        buffer = held[pointer.name] = Guarded(pointer.name, shape, pointer.dtype, device)
        if value is not None:
            buffer.tensor.copy_(value)
    return held


def _launch(
    function: Any,
    held: Mapping[str, Guarded],
    sizes: BufferSizes,
    sequences: int,
    device: torch.device,
) -> None:
    npu = torch.get_device_module("npu") if device.type == "npu" else None
    # how ctypes is given a stream
    stream = None if npu is None else npu.current_stream()._as_parameter_
    if npu is not None:
        npu.synchronize()  # the kernel's first barrier must not meet work still running
    pointers = [held[pointer.name].pointer for pointer in POINTERS]
    function(
        sizes.blocks,
        stream,
        *pointers,
        sequences,
        sizes.T,
        sizes.T,
        sizes.chunks * sizes.HV,
        sizes.HV,
    )
    if npu is not None:
        npu.synchronize()
