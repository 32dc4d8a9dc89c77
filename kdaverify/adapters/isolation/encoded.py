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
EncodedOutput = ArenaSlot | View | NonTensor | None


def pack(output: Any, inputs: TensorCall, arena: Arena) -> dict[str, EncodedOutput] | NonTensor:
    """What the kernel returned for `inputs`; its tensors are laid out in the arena."""
    known = {*inputs.signature.returned, *inputs.signature.gradients}
    values = values_of(output) if isinstance(output, Mapping) or is_dataclass(output) else None
    if values is None or not {*values} <= known:
        return _non_tensor(output)
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
        name: None if value is None else _non_tensor(value)
        for name, value in values.items()
        if name not in views
    }
    return {**others, **views, **places}


def unpack(
    encoded: Mapping[str, EncodedOutput] | NonTensor, inputs: TensorCall, arena: Arena
) -> Any:
    """What `pack` was given, in memory of its own; a view is one of the caller's `inputs`."""
    if isinstance(encoded, NonTensor):
        return _likeness(encoded)
    values = {name: _unpacked(one, inputs, arena) for name, one in encoded.items()}
    return call_operator(inputs.op).returned(values)


def _unpacked(encoded: EncodedOutput, inputs: TensorCall, arena: Arena) -> Any:
    if isinstance(encoded, ArenaSlot):
        return arena.view(encoded).to(next(iter(inputs.tensors().values())).device, copy=True)
    if isinstance(encoded, View):
        source = getattr(inputs, encoded.name)
        start = source.storage_offset() * source.itemsize // encoded.dtype.itemsize + encoded.offset
        empty = torch.empty(0, dtype=encoded.dtype, device=source.device)
        return empty.set_(source.untyped_storage(), start, encoded.shape, encoded.stride)
    return None if encoded is None else _likeness(encoded)


def _view(value: Tensor, inputs: TensorCall) -> View | None:
    for name, source in inputs.tensors().items():
        if shares_memory(value, source):
            offset = (
                int(value.storage_offset())
                - int(source.storage_offset()) * source.itemsize // value.itemsize
            )
            return View(name, offset, value.dtype, tuple(value.shape), value.stride())
    return None


def _non_tensor(value: Any) -> NonTensor:
    parts = len(value) if isinstance(value, Sized) else 0
    return NonTensor(type(value).__module__, type(value).__qualname__, parts)


def _likeness(found: NonTensor) -> Any:
    container = _CONTAINERS.get(found.qualname) if found.module == "builtins" else None
    return _type(found)() if container is None else container(range(found.parts))


@functools.cache
def _type(found: NonTensor) -> type:
    return type(found.qualname, (), {"__module__": found.module, "__qualname__": found.qualname})
