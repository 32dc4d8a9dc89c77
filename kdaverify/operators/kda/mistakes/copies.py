"""Many mistakes at one place in one run: every head of the call once for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from torch import Tensor

from kdaverify.operators.kda.mistakes.changes import Change
from kdaverify.operators.kda.mistakes.places import RIGHT, Edit, Place
from kdaverify.operators.kda.mistakes.quantities import Quantities
from oracles.chunk import Chunk, chunk
from oracles.chunk_backward import chunk_backward
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from oracles.tensors import OUTPUTS, SIGNATURE


@dataclass(frozen=True)
class Mistake:
    """One tensor that is off in one way.

    Args:
        where: in which part of the call, in words; "": everywhere.
    """

    place: Place
    change: Change
    where: str = ""

    def __str__(self) -> str:
        words = (
            f"{self.place.words} is {self.change.words}" if self.change.words else self.place.words
        )
        return f"{words}, {self.where}" if self.where else words


@dataclass(frozen=True)
class ObservedPass:
    """What is computed: a call in chunks of one size, or its gradients.

    Args:
        call: what the kernel received.
        chunk_size: C of its stages.
        cotangents: of the loss; None: the forward.
        base: mistakes that are made in any case.
    """

    call: Inputs
    chunk_size: int
    cotangents: Cotangents | None = None
    base: tuple[Mistake, ...] = ()


@torch.no_grad()
def outcomes(of: ObservedPass, place: Place, changes: Sequence[Change]) -> Mapping[str, Tensor]:
    """A pass's outputs in float64 with each change at a place: [changes, ...] by name."""
    many, built = len(changes), RIGHT
    for mistake in of.base:
        built = mistake.place.build(_edit([mistake.change] * many, of.call), built)
    built = place.build(_edit(changes, of.call), built)
    call = _repeated(of.call, many)
    if of.cotangents is None:
        found = dict(
            zip(OUTPUTS, chunk(call, chunk_size=of.chunk_size, stages=built.forward), strict=True)
        )
        return {name: _apart(name, tensor, many) for name, tensor in found.items()}
    given = {
        name: None if x is None else _along_heads(name, x, many)
        for name, x in vars(of.cotangents).items()
    }
    found = chunk_backward(
        call,
        Cotangents(**given),
        chunk_size=of.chunk_size,
        stages=built.forward,
        backward=built.backward,
    ).named()
    return {name: _apart(name, tensor, many) for name, tensor in found.items()}


def _edit(changes: Sequence[Change], call: Inputs) -> Edit:
    """All changes at once, each on a copy of the heads; to be called once for each chunk."""
    walked = count()

    def edit(x: Tensor, c: Chunk) -> Tensor:
        around = Quantities.of(c, len(changes), next(walked), call.HV // call.H)
        parts = x.unflatten(1, (len(changes), call.HV)).unbind(1)
        wrong = [change.apply(part, around) for change, part in zip(changes, parts, strict=True)]
        return torch.stack(wrong, dim=1).flatten(1, 2)

    return edit


def _repeated(call: Inputs, many: int) -> Inputs:
    """The call with all its heads `many` times over, copy by copy."""
    tensors = {name: _along_heads(name, x, many) for name, x in call.tensors().items()}
    return Inputs.restored(tensors, call.numbers())


def _along_heads(name: str, x: Tensor, many: int) -> Tensor:
    axis = _heads(name)
    return x if axis is None else torch.cat([x] * many, dim=axis)


def _heads(name: str) -> int | None:
    return next(
        (axis for axis, letter in enumerate(SIGNATURE[name].axes) if letter in ("H", "HV")), None
    )


def _apart(name: str, x: Tensor, many: int) -> Tensor:
    axis = _heads(name)
    assert axis is not None, f"{name} has no heads"
    return x.unflatten(axis, (many, -1)).movedim(axis, 0)
