"""Ways for a tensor to lie in memory, each with NaN wherever no element is."""

from __future__ import annotations

import mmap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.isolation.arena import bytes_of
from kdaverify.checks.execute import CallError
from kdaverify.checks.status import Status

GUARD: Final = 256
"""Bytes before and behind every tensor."""
GAP: Final = 3
"""Elements between rows: an odd number, so that rows of an even width are not all aligned. Each
tensor has two more than the one before: the second state of a merge was read with the strides of
the first."""
ROWS: Final = 3
"""Axes of a tensor of rows, [B, T, ...]."""
PROJECTED: Final = 3
"""Tensors of one projection: q, k and v."""
GARBAGE: Final = 2**30
"""In the place of NaN among integers."""
WRAP: Final = 2**31
"""Elements: offsets from here on do not fit an int32."""
NORESERVE: Final = 0x4000
"""MAP_NORESERVE of Linux, which Python names from 3.13 on."""
Lay = Callable[[str, Tensor, int], Tensor]
Join = Callable[[Mapping[str, Tensor]], dict[str, Tensor]]


@dataclass(frozen=True)
class MemoryLayout:
    """One way.

    Args:
        lay: (name, tensor, how many tensors lie before it) -> a tensor of the same values.
        about: in words.
        joined: lays those that share one buffer, as the parts of a fused projection do; then `lay`
            places those that have no other beside them.
    """

    lay: Lay
    about: str
    joined: Join | None = None

    def laid(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All tensors of a call."""
        shared = self.joined(tensors) if self.joined else {}
        alone = (name for name in tensors if name not in shared)
        return shared | {name: self.lay(name, tensors[name], n) for n, name in enumerate(alone)}


class GuardedMemory:
    """Tensors laid out, and what lay around them before a call."""

    def __init__(self, layout: MemoryLayout, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = layout.laid(tensors)
        self._before = {
            name: bytes_of(tensor).clone()
            for name, tensor in self.tensors.items()
            if _is_watched(tensor)
        }

    def check(self) -> None:
        """Refuses a kernel that wrote to a tensor it was given, or beside it.

        Raises:
            CallError: naming the tensor.
        """
        for name, before in self._before.items():
            count = int((bytes_of(self.tensors[name]) != before).sum())
            if count:
                said = f"{name}: the kernel changed {count} bytes of it, or of the memory around it"
                raise CallError(Status.MUTATED_INPUT, "call", said)


def _is_watched(tensor: Tensor) -> bool:
    return tensor.untyped_storage().nbytes() < WRAP


def _room(like: Tensor, shape: Sequence[int], lead: int) -> Tensor:
    """A dense tensor of `shape` that begins `lead` bytes into memory full of NaN."""
    guard, count = lead // like.itemsize, torch.Size(shape).numel()
    floats = like.is_floating_point()
    poison = float("nan") if floats else min(GARBAGE, torch.iinfo(like.dtype).max)
    return torch.full(
        (guard + count + GUARD // like.itemsize,), poison, dtype=like.dtype, device=like.device
    )[guard:][:count].view(*shape)


def _dense(lead: int) -> Lay:
    return lambda _, tensor, __: _room(tensor, tensor.shape, lead).copy_(tensor)


def _misaligned(_: str, tensor: Tensor, __: int) -> Tensor:
    return _room(tensor, tensor.shape, GUARD + tensor.itemsize).copy_(tensor)


def _sliced(_: str, tensor: Tensor, before: int) -> Tensor:
    *outer, last = tensor.shape
    return _room(tensor, (*outer, last + GAP + 2 * before), GUARD)[..., :last].copy_(tensor)


def _swapped(name: str, tensor: Tensor, before: int) -> Tensor:
    """Tokens with heads, sequences with heads."""
    if tensor.ndim < 3:
        return _dense(GUARD)(name, tensor, before)
    axes = (0, 1) if "state" in name else (1, 2)
    return _room(tensor, tensor.transpose(*axes).shape, GUARD).transpose(*axes).copy_(tensor)


def in_groups(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Tensors of one format and as many rows, those of several alone."""
    groups = defaultdict[tuple[Any, ...], dict[str, Tensor]](dict)
    for name, x in tensors.items():
        if x.ndim >= ROWS:
            groups[x.dtype, x.shape[:2]][name] = x
    return [group for group in groups.values() if len(group) > 1]


def _in_one_buffer(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The rows of a group beside each other, NaN behind each."""
    found = dict[str, Tensor]()
    for group in in_groups(tensors):
        widths = [x[0, 0].numel() for x in group.values()]
        like = next(iter(group.values()))
        room = _room(like, (*like.shape[:2], sum(widths) + GAP), GUARD)
        for (name, x), part in zip(group.items(), room[..., :-GAP].split(widths, -1), strict=True):
            found[name] = part.unflatten(-1, x.shape[2:]).copy_(x)
    return found


def heads_in_groups(tensors: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """The first tensors of one format and as many rows and heads, those of several alone."""
    groups = defaultdict[tuple[Any, ...], dict[str, Tensor]](dict)
    for name, x in tensors.items():
        group = groups[x.dtype, x.shape[:ROWS]]
        if x.ndim == ROWS + 1 and len(group) < PROJECTED:
            group[name] = x
    return [group for group in groups.values() if len(group) > 1]


def _fused(axis: int) -> Join:
    """Those of a group one after another on an axis, with nothing between rows: a projection's
    output fills its memory.
    """

    def join(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        found = dict[str, Tensor]()
        for group in heads_in_groups(tensors):
            widths = [x.shape[axis:].numel() for x in group.values()]
            like = next(iter(group.values()))
            room = _room(like, (*like.shape[:axis], sum(widths)), GUARD)
            for (name, x), part in zip(group.items(), room.split(widths, -1), strict=True):
                found[name] = part.unflatten(-1, x.shape[axis:]).copy_(x)
        return found

    return join


def _column(name: str, tensor: Tensor, before: int) -> Tensor:
    """A tensor of one axis as a column of a wider one."""
    if tensor.ndim != 1:
        return _dense(GUARD)(name, tensor, before)
    return _room(tensor, (len(tensor), GAP + 2 * before), GUARD)[:, 0].copy_(tensor)


def _wide(_: str, tensor: Tensor, __: int) -> Tensor:
    """Rows so far apart that half of them begin past 2^31 elements, the first one too."""
    axis = next((axis for axis, size in enumerate(tensor.shape) if size > 1), None)
    if axis is None or not tensor.is_floating_point():
        return tensor.clone()
    apart = 2 * WRAP // (tensor.shape[axis] - 1) + 1
    stride = [
        apart * (tensor.shape[axis] if place < axis else 1) if place <= axis else own
        for place, own in enumerate(torch.empty(tensor.shape, device="meta").stride())
    ]
    room = (WRAP + apart * tensor.shape[axis]) * tensor.itemsize
    memory = mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE)
    return (
        torch.frombuffer(memory, dtype=tensor.dtype)
        .as_strided(tensor.shape, stride, WRAP)
        .copy_(tensor)
    )


LAYOUTS: Final = {
    "guarded": MemoryLayout(_dense(GUARD), "dense, between NaNs"),
    "shifted": MemoryLayout(_dense(GUARD + 16), "dense, 16 bytes past an aligned address"),
    "misaligned": MemoryLayout(_misaligned, "dense, one element past an aligned address"),
    "sliced": MemoryLayout(
        _sliced, "the first columns of tensors, each wider by another number, NaN behind every row"
    ),
    "swapped": MemoryLayout(
        _swapped, "head-major where token-major is meant, head first where sequence first is meant"
    ),
}


def _exchanged(axis: int) -> Lay:
    """Two neighbouring axes, wherever there are both."""

    def lay(name: str, tensor: Tensor, before: int) -> Tensor:
        axes = (axis, axis + 1)
        if axes[1] >= tensor.ndim:
            return _dense(GUARD)(name, tensor, before)
        return _room(tensor, tensor.transpose(*axes).shape, GUARD).transpose(*axes).copy_(tensor)

    return lay


EXCHANGED: Final = tuple(
    MemoryLayout(_exchanged(axis), f"with axes {axis} and {axis + 1} exchanged in memory")
    for axis in range(3)
)
"""Where sizes are equal, strides alone say which axis is which."""
JOINED: Final = MemoryLayout(
    _dense(GUARD),
    "views of one buffer, as the parts of a fused projection are",
    joined=_in_one_buffer,
)
STEPPED: Final = (*(LAYOUTS[name] for name in ("misaligned", "sliced", "swapped")), JOINED)
"""What one token of a server lies in: columns of a projection, slots of a pool of states."""
FUSED: Final = tuple(
    MemoryLayout(_dense(GUARD), f"views of one projection [B, T, {order}]", joined=_fused(axis))
    for axis, order in ((2, "3, H, d"), (3, "H, 3, d"))
)
COLUMNS: Final = MemoryLayout(
    _column, "with one axis each a column of a wider tensor, as lengths of a table are"
)
WIDE: Final = MemoryLayout(_wide, "rows so far apart that offsets of elements pass 2^31")
