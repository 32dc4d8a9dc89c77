"""What a call of an operator takes and returns: named tensors with roles.

Whatever handles tensors of any operator (copies them, cuts them into sequences, checks their
shapes, names a place in them) reads roles and axes here instead of names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum, auto
from functools import cached_property
from typing import Any, ClassVar, Self


class Role(Enum):
    """What a tensor is to a call."""

    TOKEN = auto()
    """One row a token, [B, T, ...]; of packed sequences in the rows of each."""
    STATE = auto()
    """One entry a sequence, [N, ...]: what a call hands to the next one."""
    PARAMETER = auto()
    """The same for all tokens and sequences."""
    OFFSETS = auto()
    """Where sequences begin in a pack, integers [N + 1]."""
    LENGTHS = auto()
    """How many tokens of each sequence there are, integers [N]."""
    CACHE = auto()
    """Memory that requests share and index tensors point into; much of it may belong to none."""
    INDEX = auto()
    """Integers that name something, [N] or [T]; no result depends on which numbers they are."""


@dataclass(frozen=True)
class TensorRole:
    """One tensor of a call.

    Args:
        name: as operators.md and every message have it.
        role: what it is to the call.
        axes: letters of math.md 1.
        gradient: the name of the gradient with respect to it, or of the cotangent of an output; ""
            where there is none.
        optional: whether a call may leave it out.
    """

    name: str
    role: Role
    axes: tuple[str, ...]
    gradient: str = ""
    optional: bool = False


@dataclass(frozen=True)
class CallSignature:
    """All tensors of a call, inputs and outputs, in the order of the operator's definition."""

    inputs: tuple[TensorRole, ...]
    outputs: tuple[TensorRole, ...]

    def names(self, *roles: Role) -> tuple[str, ...]:
        """The inputs of some roles, of all where none is given."""
        return tuple(tensor.name for tensor in self.inputs if not roles or tensor.role in roles)

    @cached_property
    def returned(self) -> tuple[str, ...]:
        """The outputs."""
        return tuple(tensor.name for tensor in self.outputs)

    @cached_property
    def gradients(self) -> Mapping[str, str]:
        """The input that each gradient belongs to."""
        return {tensor.gradient: tensor.name for tensor in self.inputs if tensor.gradient}

    @cached_property
    def cotangents(self) -> Mapping[str, str]:
        """The output that each cotangent belongs to."""
        return {tensor.gradient: tensor.name for tensor in self.outputs if tensor.gradient}

    def __getitem__(self, name: str) -> TensorRole:
        """The entry of an input or an output, also by the name of its gradient or cotangent."""
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        """Whether it is an input, an output, or a gradient of one."""
        return name in self._entries

    def is_state(self, name: str) -> bool:
        """Whether an input, an output, or a gradient of one has an entry for every sequence."""
        return name in self._entries and self._entries[name].role is Role.STATE

    def shape(self, name: str, call: Any) -> tuple[int, ...]:
        """The shape of a tensor of a call."""
        return tuple(self._size(axis, call) for axis in self._entries[name].axes)

    def _size(self, axis: str, call: Any) -> int:
        """What the call says itself if no input has the axis, else what the first one has."""
        if hasattr(call, axis):
            return getattr(call, axis)
        given = (
            (tensor.axes, getattr(call, tensor.name))
            for tensor in self.inputs
            if axis in tensor.axes
        )
        return next(tensor.shape[axes.index(axis)] for axes, tensor in given if tensor is not None)

    def tensors(self, call: Any, *roles: Role) -> dict[str, Any]:
        """The inputs of a call that are not absent, by name."""
        found = {name: getattr(call, name) for name in self.names(*roles)}
        return {name: tensor for name, tensor in found.items() if tensor is not None}

    def changed(self, call: Any, change: Callable[[Any], Any], *roles: Role) -> dict[str, Any]:
        """The inputs of a call, those that are not absent changed."""
        return {name: change(tensor) for name, tensor in self.tensors(call, *roles).items()}

    @cached_property
    def _entries(self) -> Mapping[str, TensorRole]:
        every = (*self.inputs, *self.outputs)
        return {name: tensor for tensor in every for name in (tensor.name, tensor.gradient) if name}


class TensorCall:
    """One call of an operator: a frozen dataclass of its signature's inputs and of numbers.

    Args:
        op: the operator's name.
        signature: its tensors; each input is a field of that name, None where it is absent.
    """

    op: ClassVar[str]
    signature: ClassVar[CallSignature]

    @property
    def device(self) -> Any:
        """Where its tensors lie."""
        return next(iter(self.tensors().values())).device

    def copied(self) -> Self:
        """The same call in memory of its own."""
        return self._unchanged(lambda tensor: tensor.clone())

    def on(self, device: Any) -> Self:
        """The same call with every tensor on `device`."""
        return self._unchanged(lambda tensor: tensor.to(device))

    def _unchanged(self, elsewhere: Callable[[Any], Any]) -> Self:
        """The same call, every tensor replaced by one of the same values: they are checked."""
        moved = {name: elsewhere(tensor) for name, tensor in self.tensors().items()}
        return self.restored(moved, self.numbers())

    def holds(self, name: str) -> bool:
        """Whether an input is there and has numbers: gates of no channel are absent."""
        tensor = getattr(self, name)
        return tensor is not None and tensor.shape[-1:] != (0,)

    def mapped(self, change: Callable[[Any], Any], *roles: Role) -> Self:
        """The same call with its tensors changed, all or those of some roles."""
        call: Any = self  # a dataclass each
        return replace(call, **self.signature.changed(self, change, *roles))

    def tensors(self) -> dict[str, Any]:
        """What is given, by name."""
        return self.signature.tensors(self)

    def numbers(self) -> dict[str, Any]:
        """The fields that are no tensors."""
        names = self.signature.names()
        own = fields(self)  # pyright: ignore[reportArgumentType] # a dataclass each
        return {field.name: getattr(self, field.name) for field in own if field.name not in names}

    @classmethod
    def restored(cls, tensors: Mapping[str, Any], numbers: Mapping[str, Any]) -> Self:
        """The call of these tensors and numbers, unchecked: a check would double its cost."""
        call = object.__new__(cls)
        vars(call).update({name: tensors.get(name) for name in cls.signature.names()}, **numbers)
        return call
