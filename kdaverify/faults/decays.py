"""Chunks that form their decays as faulty kernels do: the stages that read them are the right ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kdaverify.faults.views import pads
from oracles.chunk import SUB_BLOCK, Chunk


def _square(c: Chunk, rows: slice) -> tuple[Tensor, Tensor]:
    """G_i [s, 1, K] and G_j [1, s, K]."""
    return c.G[..., rows, None, :], c.G[..., None, rows, :]


def _lower(square: Tensor) -> Tensor:
    """[s, s, 1], 1 on and below the diagonal, else 0."""
    size = square.shape[-2]
    return torch.ones(size, size, dtype=square.dtype, device=square.device).tril()[..., None]


class FromTheStart(Chunk):
    """exp(G_i) exp(-G_j), both from the chunk's start."""

    def decay(self, later: slice, earlier: slice | None = None) -> Tensor:
        if earlier is None:
            return Chunk.decay(self, later)
        return self.factor(self.G[..., later, :]) * self.factor(-self.G[..., earlier, :])

    def pair_decay(self, rows: slice) -> Tensor:
        later, earlier = _square(self, rows)
        product = self.factor(later) * self.factor(-earlier)
        return product.masked_fill(_lower(product) == 0, 0.0)

    def factor(self, exponent: Tensor) -> Tensor:
        return self.arithmetic.exp(exponent)


class ClampedFromTheStart(FromTheStart):
    """The same with exponents clamped to 80 bits."""

    def factor(self, exponent: Tensor) -> Tensor:
        return self.arithmetic.exp(exponent.clamp(-80 * math.log(2), 80 * math.log(2)))


class StoredFromTheStart(FromTheStart):
    """The same with factors stored like the operands of products."""

    def factor(self, exponent: Tensor) -> Tensor:
        return self.arithmetic.store("kg", self.arithmetic.exp(exponent))


class AnchoredAtTheFirstRow(Chunk):
    """Diagonal blocks as products of factors relative to the block's first row."""

    def pair_decay(self, rows: slice) -> Tensor:
        later, earlier = _square(self, rows)
        anchor = self.G[..., rows.start, None, None, :]
        product = self.arithmetic.exp(later - anchor) * self.arithmetic.exp(anchor - earlier)
        return product.masked_fill(_lower(product) == 0, 0.0)


class AnchoredOnce(Chunk):
    """All pairs as products of factors relative to one row in the middle of the chunk."""

    def decay(self, later: slice, earlier: slice | None = None) -> Tensor:
        if earlier is None:
            return Chunk.decay(self, later)
        return self.arithmetic.exp(self.G[..., later, :] - self.anchor) * self.arithmetic.exp(self.anchor - self.G[..., earlier, :])

    def pair_decay(self, rows: slice) -> Tensor:
        later, earlier = _square(self, rows)
        anchor = self.anchor[..., None, :]
        product = self.arithmetic.exp(later - anchor) * self.arithmetic.exp(anchor - earlier)
        return product.masked_fill(_lower(product) == 0, 0.0)

    @property
    def anchor(self) -> Tensor:
        middle = self.G.shape[-2] // 2
        return self.G[..., middle : middle + 1, :]


class AnchoredOneRowLate(Chunk):
    """Pairs of different blocks relative to the row after the one that both factors can be relative to."""

    def decay(self, later: slice, earlier: slice | None = None) -> Tensor:
        last = self.G.shape[-2] - 1
        if earlier is not None and earlier.stop - earlier.start == 1:
            return Chunk.decay(self, later, slice(min(earlier.start + 1, last), min(earlier.stop + 1, last + 1)))
        if earlier is not None and later.stop is not None and later.stop - later.start == 1 and later.start % SUB_BLOCK == 0:
            return Chunk.decay(self, slice(min(later.start + 1, last), min(later.stop + 1, last + 1)), earlier)
        return Chunk.decay(self, later, earlier)


class MaskedByMultiplication(Chunk):
    """Differences exponentiated above the diagonal too, then multiplied by 0."""

    def pair_decay(self, rows: slice) -> Tensor:
        later, earlier = _square(self, rows)
        whole = self.arithmetic.exp(later - earlier)
        return whole * _lower(whole)


class MaskedAfterwards(Chunk):
    """Differences exponentiated above the diagonal too, then filled with 0: finite, but not in autograd."""

    def pair_decay(self, rows: slice) -> Tensor:
        later, earlier = _square(self, rows)
        whole = self.arithmetic.exp(later - earlier)
        return whole.masked_fill(_lower(whole) == 0, 0.0)


class WithoutZeroDifferences(Chunk):
    """Decays only where a difference is below 0: pairs without any decay between them are lost."""

    def decay(self, later: slice, earlier: slice | None = None) -> Tensor:
        whole = Chunk.decay(self, later, earlier)
        if earlier is None:
            return whole
        return torch.where(self.G[..., later, :] < self.G[..., earlier, :], whole, 0.0)

    def pair_decay(self, rows: slice) -> Tensor:
        later, earlier = _square(self, rows)
        size = later.shape[-3]
        own = torch.eye(size, dtype=torch.bool, device=later.device)[..., None]
        return torch.where((later < earlier) | own, Chunk.pair_decay(self, rows), 0.0)


class PaddedRowsAtZero(Chunk):
    """G of rows past the end of the sequence is 0, and pairs are masked by multiplication over all rows."""

    def decay(self, later: slice, earlier: slice | None = None) -> Tensor:
        if earlier is None:
            return Chunk.decay(self, later)
        return self.arithmetic.exp(self.padded[..., later, :] - self.padded[..., earlier, :])

    def pair_decay(self, rows: slice) -> Tensor:
        later, earlier = self.padded[..., rows, None, :], self.padded[..., None, rows, :]
        whole = self.arithmetic.exp(later - earlier)
        return whole * _lower(whole)

    @property
    def padded(self) -> Tensor:
        return self.G.masked_fill(pads(self), 0.0)


class OneOffsetForAllChannels(Chunk):
    """Factors relative to the largest G of a token, exponents clamped at 80, and the offsets put back pair by pair."""

    def decay(self, later: slice, earlier: slice | None = None) -> Tensor:
        if earlier is None:
            return Chunk.decay(self, later)
        return self._products(self.G[..., later, :], self.G[..., earlier, :])

    def pair_decay(self, rows: slice) -> Tensor:
        product = self._products(*_square(self, rows))
        return product.masked_fill(_lower(product) == 0, 0.0)

    def _products(self, later: Tensor, earlier: Tensor) -> Tensor:
        exp, high, low = self.arithmetic.exp, later.amax(-1, keepdim=True), earlier.amax(-1, keepdim=True)
        return exp(later - high) * exp((low - earlier).clamp(max=80.0)) * exp(high - low)


class Unmasked(Chunk):
    """Diagonal blocks without the causal mask."""

    def pair_decay(self, rows: slice) -> Tensor:
        later, earlier = _square(self, rows)
        return self.arithmetic.exp(later - earlier)
