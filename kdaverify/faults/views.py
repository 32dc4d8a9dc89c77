"""What faults look at and tamper with: tails, padded rows, tiles, sequences."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from oracles.chunk import Chunk, Stage
from oracles.chunk_backward import BackwardStage, ChunkGradients
from oracles.inputs import Inputs
from oracles.tensors import TOKENS

AnyChunk = TypeVar("AnyChunk", bound=Chunk)
LAST = slice(-1, None)
EVERY = slice(None)


def recast(x: Chunk, kind: type[AnyChunk]) -> AnyChunk:
    """The same chunk as one of another kind, that reads itself another way."""
    new = kind.__new__(kind)
    vars(new).update(vars(x))
    return new


def seen_as(kind: type[Chunk], stage: Stage) -> Stage:
    """`stage` on a chunk that reads itself as `kind` does."""

    def changed(c: Chunk) -> None:
        other = recast(c, kind)
        stage(other)
        vars(c).update(vars(other))

    return changed


def seen_as_backward(kind: type[Chunk], stage: BackwardStage) -> BackwardStage:
    """`stage` of the backward where the tensors of the forward are read as `kind` does."""

    def changed(b: ChunkGradients) -> None:
        c = b.c
        b.c = recast(c, kind)
        stage(b)
        b.c = c

    return changed


def transposed(matrix: Tensor) -> Tensor:
    return matrix.transpose(-1, -2)


def valid(c: Chunk) -> Tensor:
    """[n, 1, C, 1], True on rows of the sequence."""
    return c.tokens.valid.to(c.tokens.q.device)[:, None, :, None]


def pads(c: Chunk) -> Tensor:
    """[n, 1, C, 1], True on rows past the end of the sequence."""
    return ~valid(c)


def lengths(c: Chunk) -> Tensor:
    """[n, 1, 1, 1], tokens of the sequence in the chunk."""
    return valid(c).sum(-2, keepdim=True)


def short(c: Chunk) -> Tensor:
    """[n, 1, 1, 1], True where the chunk is not full."""
    return lengths(c) < valid(c).shape[-2]


def with_tokens(c: Chunk, **tensors: Tensor) -> Chunk:
    """A copy of the chunk with other tokens."""
    other = copy.copy(c)
    other.tokens = replace(c.tokens, **tensors)
    return other


def one_tile(like: Tensor, random: torch.Generator) -> Tensor:
    """[n, HV, 1, ...], True on one sequence and head chosen at random."""
    n, heads = like.shape[:2]
    drawn = int(torch.randint(n * heads, (), generator=random))
    mask = torch.zeros(n * heads, dtype=torch.bool)
    mask[drawn] = True
    return mask.view(n, heads, *[1] * (like.ndim - 2)).to(like.device)


def one_of(axis: int, like: Tensor, random: torch.Generator) -> Tensor:
    """True on one index of an axis chosen at random, broadcasting to `like`."""
    drawn = int(torch.randint(like.shape[axis], (), generator=random))
    shape = [1] * like.ndim
    shape[axis] = like.shape[axis]
    return (torch.arange(like.shape[axis], device=like.device) == drawn).view(shape)


def straight(x: Tensor, value: Tensor) -> Tensor:
    """`value`, with the derivative of `x`."""
    return x + (value - x).detach() if x.requires_grad else value


def order(x: Inputs) -> list[int]:
    """Sequences that have tokens, as the walk over chunks meets them: longest first."""
    lengths = x.lengths
    return [n for n in sorted(range(x.N), key=lambda n: -lengths[n]) if lengths[n]]


def token_rows(x: Inputs, rows: Tensor) -> Inputs:
    """The call with other rows in the places of its tokens; rows count along [B * T]."""
    moved = {name: getattr(x, name).flatten(0, 1)[rows].unflatten(0, (x.B, x.T)) for name in TOKENS}
    return replace(x, **moved)


def sequence(x: Inputs, n: int, tokens: int) -> Inputs:
    """The first tokens of one sequence as a call of its own."""
    rows = slice(x.starts[n], x.starts[n] + tokens)
    cut = {name: getattr(x, name).flatten(0, 1)[None, rows] for name in TOKENS}
    state = None if x.initial_state is None else x.initial_state[n : n + 1]
    return replace(x, **cut, initial_state=state, cu_seqlens=None)


def past_the_end(x: Inputs) -> int:
    """First row past the last offset of a pack; T where nothing is."""
    return sum(x.lengths) if x.cu_seqlens is not None else x.T


def as_if_contiguous(tensor: Tensor) -> Tensor:
    """What a kernel reads that takes the memory of a view for that of a dense tensor."""
    if tensor.is_contiguous():
        return tensor
    start = tensor.storage_offset()
    storage = tensor.untyped_storage().nbytes() // tensor.element_size()
    there = tensor.detach().as_strided((min(tensor.numel(), storage - start),), (1,), start)
    wanted = torch.cat((there, there.new_zeros(tensor.numel() - len(there))))
    return straight(tensor, wanted.view(tensor.shape))


def each(x: Inputs, names: tuple[str, ...], change: Callable[[Tensor], Tensor]) -> Inputs:
    """The call with some of its tensors changed."""
    return replace(
        x, **{name: change(getattr(x, name)) for name in names if getattr(x, name) is not None}
    )
