"""A place's quantities: decays, strengths and constants that may be factors of errors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from oracles.chunk import Chunk


@dataclass(frozen=True)
class Quantities:
    """What surrounds a chunk's tensor [n, HV, C, ...], as in `oracles.chunk`; resets count 0.

    Args:
        g: [n, HV, C, K] log decays.
        beta: [n, HV, C].
        valid: [n, 1, C, 1], False on rows past the end of a sequence.
        scale: of the output.
        chunk: how many come before it in the walk over chunks.
        group: value heads of a key head.
    """

    g: Tensor
    beta: Tensor
    valid: Tensor
    scale: float
    chunk: int
    group: int

    @staticmethod
    def of(c: Chunk, copies: int, chunk: int, group: int) -> Quantities:
        """Those of a chunk whose heads are `copies` times those of the call."""
        heads = c.tokens.beta.shape[1] // copies
        g = c.tokens.g[:, :heads]
        finite, valid = g.masked_fill(g.isneginf(), 0.0), c.tokens.valid[:, None, :, None]
        return Quantities(finite, c.tokens.beta[:, :heads], valid, c.scale, chunk, group)

    @cached_property
    def G(self) -> Tensor:
        """[n, HV, C, K], the sum of the gates up to and including a token."""
        return self.g.cumsum(-2)

    @cached_property
    def to_the_end(self) -> Tensor:
        """[n, HV, C, K], the sum of the gates from the next token to the chunk's end."""
        return self.total - self.G

    @cached_property
    def total(self) -> Tensor:
        """[n, HV, 1, K]."""
        return self.G[..., -1:, :]

    @cached_property
    def last(self) -> Tensor:
        """[n, HV, 1, K], the gates of the last token of the sequence in the chunk."""
        ends = (self.valid.sum(-2, keepdim=True) - 1).clamp(min=0)
        return self.g.gather(-2, ends.expand(*self.g.shape[:2], 1, self.g.shape[-1]))

    @cached_property
    def next(self) -> Tensor:
        """[n, HV, C, K], the gates of the next token; 0 at the chunk's end."""
        return torch.cat((self.g[..., 1:, :], torch.zeros_like(self.g[..., :1, :])), dim=-2)

    @cached_property
    def previous(self) -> Tensor:
        """[n, HV, C, K], the gates of the token before; 0 at the chunk's start."""
        return torch.cat((torch.zeros_like(self.g[..., :1, :]), self.g[..., :-1, :]), dim=-2)
