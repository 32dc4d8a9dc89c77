"""Chunks that form their decays as faulty kernels do; the stages that read them are right."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from kdaverify.faults.views import pads
from oracles.arithmetic import SUB_BLOCK
from oracles.chunk import Chunk

Pick = Callable[[Tensor], Tensor]


class DecayDifferences(Chunk):
    """Decays by `formed` from two sums of gates; 0 across a hard reset and where `masked`.

    The differences here are exponentiated above the diagonal too, and filled with 0 afterwards:
    finite, but not in autograd.
    """

    def decay(self, later: slice, earlier: slice | None = None) -> Tensor:
        if earlier is None:
            return Chunk.decay(self, later)
        return self._between(lambda x: x[..., later, :], lambda x: x[..., earlier, :])

    def pair_decay(self, rows: slice) -> Tensor:
        return self.masked(
            self._between(lambda x: x[..., rows, None, :], lambda x: x[..., None, rows, :])
        )

    @property
    def sums(self) -> Tensor:
        """G, [C, K]."""
        return self.G

    def formed(self, later: Tensor, earlier: Tensor) -> Tensor:
        """The decay from one sum to another; they broadcast."""
        return self.arithmetic.exp(later - earlier)

    def masked(self, square: Tensor) -> Tensor:
        """Pairs of a block [s, s, K] without those above the diagonal."""
        return square.masked_fill(_lower(square) == 0, 0.0)

    def _between(self, later: Pick, earlier: Pick) -> Tensor:
        decay = self.formed(later(self.sums), earlier(self.sums))
        if self.resets is None:
            return decay
        return decay.masked_fill(later(self.resets) > earlier(self.resets), 0.0)


def _lower(square: Tensor) -> Tensor:
    """[s, s, 1], 1 on and below the diagonal, else 0."""
    size = square.shape[-2]
    return torch.ones(size, size, dtype=square.dtype, device=square.device).tril()[..., None]


class MaskedByMultiplication(DecayDifferences):
    """Differences exponentiated above the diagonal too, then multiplied by 0."""

    def masked(self, square: Tensor) -> Tensor:
        return square * _lower(square)


class Unmasked(DecayDifferences):
    """Diagonal blocks without the causal mask."""

    def masked(self, square: Tensor) -> Tensor:
        return square


class PaddedRowsAtZero(MaskedByMultiplication):
    """G of rows past the end of the sequence is 0."""

    @property
    def sums(self) -> Tensor:
        return self.G.masked_fill(pads(self), 0.0)


class FromTheStart(DecayDifferences):
    """exp(G_i) exp(-G_j), both from the chunk's start."""

    def formed(self, later: Tensor, earlier: Tensor) -> Tensor:
        return self.factor(later) * self.factor(-earlier)

    def factor(self, exponent: Tensor) -> Tensor:
        return self.arithmetic.exp(exponent)


class ClampedFromTheStart(FromTheStart):
    """The same with exponents clamped to 80 bits."""

    def factor(self, exponent: Tensor) -> Tensor:
        return self.arithmetic.exp(exponent.clamp(-80 * math.log(2), 80 * math.log(2)))


class StoredFromTheStart(FromTheStart):
    """The same with factors stored as operands are."""

    def factor(self, exponent: Tensor) -> Tensor:
        return self.store("operand", self.arithmetic.exp(exponent))


class AnchoredOnce(DecayDifferences):
    """All pairs as products of factors relative to one row in the middle of the chunk."""

    def formed(self, later: Tensor, earlier: Tensor) -> Tensor:
        row = self.G[..., self.G.shape[-2] // 2, None, :]
        anchor = row if row.ndim == later.ndim else row[..., None, :]
        return self.arithmetic.exp(later - anchor) * self.arithmetic.exp(anchor - earlier)


class AnchoredAtTheFirstRow(DecayDifferences):
    """Diagonal blocks as products of factors relative to their first row."""

    def formed(self, later: Tensor, earlier: Tensor) -> Tensor:
        if later.ndim == self.G.ndim:
            return self.arithmetic.exp(later - earlier)
        anchor = later[..., :1, :, :]
        return self.arithmetic.exp(later - anchor) * self.arithmetic.exp(anchor - earlier)


class OneOffsetForAllChannels(DecayDifferences):
    """Factors relative to a token's largest G, exponents clamped at 80, then put right."""

    def formed(self, later: Tensor, earlier: Tensor) -> Tensor:
        exp = self.arithmetic.exp
        high = later.amax(-1, keepdim=True)
        low = earlier.amax(-1, keepdim=True)
        return exp(later - high) * exp((low - earlier).clamp(max=80.0)) * exp(high - low)


class WithoutZeroDifferences(DecayDifferences):
    """Pairs without any decay between them are lost, but for a token with itself."""

    def formed(self, later: Tensor, earlier: Tensor) -> Tensor:
        decay = self.arithmetic.exp((later - earlier).clamp(max=0.0))
        own = torch.zeros((), dtype=torch.bool, device=decay.device)
        if decay.ndim > self.G.ndim:
            own = torch.eye(decay.shape[-2], dtype=torch.bool, device=decay.device)[..., None]
        return torch.where((later < earlier) | own, decay, 0.0)


class AnchoredOneRowLate(Chunk):
    """Pairs of blocks relative to the row after the one that both factors can be relative to."""

    def decay(self, later: slice, earlier: slice | None = None) -> Tensor:
        if earlier is None:
            return Chunk.decay(self, later)
        return Chunk.decay(self, self._shifted(later), self._shifted(earlier))

    def _shifted(self, rows: slice) -> slice:
        # The anchor is the first row of a block, alone.
        first, stop, _ = rows.indices(self.G.shape[-2])
        alone = stop - first == 1 and first % SUB_BLOCK == 0 and stop < self.G.shape[-2]
        return slice(first + 1, stop + 1) if alone else rows
