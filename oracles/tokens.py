"""Tokens of packed or dense sequences, gathered from a call and written back to it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar, cast

import torch
from torch import Tensor

from oracles.inputs import Inputs

Tensors = tuple[Tensor, ...]
X = TypeVar("X")


class OfSequences:
    """Holds tensors [n, ...] of n sequences, also in what it holds of this kind."""

    def picked(self, rows: slice | Tensor) -> Self:
        """The same of some sequences."""
        found = copy.copy(self)
        found.__dict__.update({name: _picked(x, rows) for name, x in vars(self).items()})
        return found


def _picked(x: object, rows: slice | Tensor) -> object:
    match x:
        case Tensor():
            return x[rows]
        case OfSequences():
            return x.picked(rows)
        case tuple():
            return tuple(_picked(each, rows) for each in cast("tuple[object, ...]", x))
        case _:
            return x


@dataclass(frozen=True)
class Tokens(OfSequences):
    """One block of tokens of every live sequence; rows past a sequence's end are all zero.

    Args:
        q, k: [n, HV, C, K], each key head repeated for its value heads.
        v: [n, HV, C, V]; g: [n, HV, C, K]; beta: [n, HV, C].
        valid: [n, C], False on the rows past a sequence's end.
        others: [n, HV, C, ...], what else the caller has cut alike.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor
    valid: Tensor
    others: Tensors = ()

    def rows(self, rows: slice, live: int | None = None) -> Tokens:
        """Some tokens of the block only; of the first `live` sequences."""
        q, k, v, g, beta, *others = (x[:live, :, rows] for x in self._tensors)
        return Tokens(q, k, v, g, beta, self.valid[:live, rows], tuple(others))

    def split(self, size: int) -> list[Tokens]:
        """All of the block, `size` tokens each: a fifth of the time that as many `rows` take."""
        pieces = zip(*(x.split(size, dim=2) for x in self._tensors), strict=True)
        return [
            Tokens(q, k, v, g, beta, valid, tuple(others))
            for (q, k, v, g, beta, *others), valid in zip(
                pieces, self.valid.split(size, dim=1), strict=True
            )
        ]

    @property
    def _tensors(self) -> Tensors:
        return self.q, self.k, self.v, self.g, self.beta, *self.others


_GATHERED: ContextVar[dict[Hashable, Any] | None] = ContextVar("gathered", default=None)


@contextmanager
def gathered_once() -> Generator[None]:
    """Keeps the gathered tokens, and the blocks, of every call for all walks over it: reference
    kernels in chunks take some per cent less CPU time. Nothing within may write to a call or take
    gradients of it.
    """
    before = _GATHERED.set({})
    try:
        yield
    finally:
        _GATHERED.reset(before)


def once(key: Hashable, make: Callable[[], X]) -> X:
    """What was made under this key, within `gathered_once`."""
    kept = _GATHERED.get()
    if kept is None:
        return make()
    if key not in kept:
        kept[key] = make()
    return kept[key]


Span = tuple[int, Tensor, Tensor]


def longest_first(inputs: Inputs) -> list[int]:
    """The numbers of the sequences in the order in which they are walked."""
    lengths = inputs.lengths
    return sorted(range(inputs.N), key=lambda n: -lengths[n])


def spans(inputs: Inputs, order: list[int], size: int) -> list[Span]:
    """The first token, the rows of the token axis that are gathered at once, and which of them are
    real; on the CPU, where testing costs nothing.
    """

    def made() -> Iterator[Span]:
        starts = torch.as_tensor(inputs.starts)[order]
        lengths = torch.as_tensor(inputs.lengths)[order]
        for first in range(0, max(inputs.lengths), size):
            live = int((lengths > first).sum())
            offsets = torch.arange(first, first + size)
            last = lengths[:live, None] - 1
            rows = starts[:live, None] + torch.minimum(offsets, last)
            yield first, rows, offsets < lengths[:live, None]

    return once((inputs, size), lambda: list(made()))


def gather(inputs: Inputs, span: Span, dtype: torch.dtype, others: Tensors) -> Tokens:
    first, rows, valid = span
    group = inputs.HV // inputs.H
    device = inputs.q.device
    padded = not bool(valid.all())
    # Of padding, one more than there are: zeros, as `scatter` cuts off.
    rows = (rows.masked_fill(~valid, inputs.B * inputs.T) if padded else rows).to(device)

    def take(tensor: Tensor, repeat: int = 1) -> Tensor:
        flat = tensor.flatten(0, 1)
        if padded:
            flat = torch.cat((flat, flat.new_zeros(1, *flat.shape[1:])))
        picked = flat[rows].to(dtype).transpose(1, 2)
        return picked.repeat_interleave(repeat, dim=1) if repeat > 1 else picked

    def made() -> Tokens:
        q, k = take(inputs.q, group), take(inputs.k, group)
        return Tokens(q, k, take(inputs.v), take(inputs.decays), take(inputs.beta), valid)

    tokens = once((inputs, first, valid.shape, dtype), made)
    return replace(tokens, others=tuple(map(take, others))) if others else tokens


def scatter(inputs: Inputs, rows: list[Tensor], pieces: list[Tensor]) -> Tensor:
    """The outputs at their rows; those of padding are at one row more, which is cut off."""
    values = torch.cat(pieces)
    flat = values.new_zeros(inputs.B * inputs.T + 1, *values.shape[1:])
    return flat.index_copy(0, torch.cat(rows).to(values.device), values)[:-1].unflatten(
        0, (inputs.B, inputs.T)
    )
