"""Outputs or gradients between two processes: tensors, views of inputs, anything else."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, is_dataclass
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import values_of
from kdaverify.adapters.isolation.arena import Arena, ArenaSlot
from kdaverify.adapters.placement import shares_memory
from kdaverify.operator import call_operator
from oracles.signature import TensorCall


@dataclass(frozen=True)
class View:
    """A tensor in the memory of the input `name`."""

    name: str
    offset: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True)
class NonTensor:
    """Something that is no tensor: its type is kept, and of a container the number of parts."""

    module: str
    qualname: str
    parts: int = 0


_CONTAINERS: Final[Mapping[str, Callable[[range], Any]]] = {
    "list": list,
    "tuple": tuple,
    "dict": dict.fromkeys,
}
Parcel = ArenaSlot | View | NonTensor | None


def pack(output: Any, inputs: TensorCall, arena: Arena) -> dict[str, Parcel] | NonTensor:
    """What the kernel returned for `inputs`; its tensors are laid out in the arena."""
    known = {*inputs.signature.returned, *inputs.signature.gradients}
    values = values_of(output) if isinstance(output, Mapping) or is_dataclass(output) else None
    if values is None or not {*values} <= known:
        return _stranger(output)
    views = {
        name: _view(value, inputs) for name, value in values.items() if isinstance(value, Tensor)
    }
    own = {
        name: value.detach()
        for name, value in values.items()
        if name in views and views[name] is None
    }
    places = arena.lay_out(own)
    others = {
        name: None if value is None else _stranger(value)
        for name, value in values.items()
        if name not in views
    }
    return {**others, **views, **places}


def unpack(parcels: Mapping[str, Parcel] | NonTensor, inputs: TensorCall, arena: Arena) -> Any:
    """What `pack` was given, in memory of its own; a view is one of the caller's `inputs`."""
    if isinstance(parcels, NonTensor):
        return _likeness(parcels)
    values = {name: _unpacked(parcel, inputs, arena) for name, parcel in parcels.items()}
    return call_operator(inputs.op).returned(values)


def _unpacked(parcel: Parcel, inputs: TensorCall, arena: Arena) -> Any:
    if isinstance(parcel, ArenaSlot):
        return arena.view(parcel).to(next(iter(inputs.tensors().values())).device, copy=True)
    if isinstance(parcel, View):
        source = getattr(inputs, parcel.name)
        start = source.storage_offset() * source.itemsize // parcel.dtype.itemsize + parcel.offset
        empty = torch.empty(0, dtype=parcel.dtype, device=source.device)
        return empty.set_(source.untyped_storage(), start, parcel.shape, parcel.stride)
    return None if parcel is None else _likeness(parcel)


def _view(value: Tensor, inputs: TensorCall) -> View | None:
    for name, source in inputs.tensors().items():
        if shares_memory(value, source):
            offset = (
                int(value.storage_offset())
                - int(source.storage_offset()) * source.itemsize // value.itemsize
            )
            return View(name, offset, value.dtype, tuple(value.shape), value.stride())
    return None


def _stranger(value: Any) -> NonTensor:
    parts = len(value) if isinstance(value, Sized) else 0
    return NonTensor(type(value).__module__, type(value).__qualname__, parts)


def _likeness(stranger: NonTensor) -> Any:
    container = _CONTAINERS.get(stranger.qualname) if stranger.module == "builtins" else None
    return _type(stranger)() if container is None else container(range(stranger.parts))


@functools.cache
def _type(stranger: NonTensor) -> type:
    return type(
        stranger.qualname, (), {"__module__": stranger.module, "__qualname__": stranger.qualname}
    )
