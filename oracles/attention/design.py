"""The order of operations of an online-softmax kernel, as data: what a contract leaves open."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Span = tuple[int, int]
"""First key, and the one past the last."""


@dataclass(frozen=True)
class OnlineDesign:
    """One way to compute attention; every combination is a conforming kernel of some contract.

    Args:
        block: keys of a block.
        direction: from which end the blocks of a split are read; FlashAttention reads backward.
        splits: parts of the keys with statistics of their own.
        cut: where splits begin: at equal lengths, at whole blocks, or after a first short one.
        merge: how partials are combined: all at once, in order, in reversed order, or as a tree.
        rescale: every block; lazily, when the maximum rose by more than `lazy`; or never, from a
            first pass over all scores for the final maximum.
        lazy: by how many powers of two the maximum may rise before a lazy kernel rescales.
        base: of the exponential.
        scale: where the softmax scale enters: q is scaled and stored, the scores, or exponents.
        fused: whether the exponent is one fused multiply-add (scaled score minus scaled maximum),
            or the maximum is subtracted first.
        relative_to: the maximum that P is relative to when rounded: running, or the block's.
        row_sum: whether the row sum is of P as computed or as stored.
        normalise_first: whether P is divided by its row sum before the product with V.
        division: by the row sum; a product with its rounded reciprocal; or none, where P is made
            relative to LSE (lse), and weights of a merge to that of all parts; normalise_first too.
        seesaw: whether blocks are read in pairs and the two halves of the columns of V are
            accumulated differently (FlashMLA, Hopper; see `seesaw`).
        sink: whether o is multiplied by its factor at the end, or the running maximum and sum of
            the first split begin with it (start): P is relative to the sink, too, then.
        heads: of the backward, whether the query heads of a KV head are summed in the accumulator
            (packed), or each head's dk and dv are stored before they are summed (alone):
            FlashAttention-2, and automatic differentiation of repeated heads.
        maximum: of the backward, whether the running maximum is a constant, as its gradient is 0 in
            exact arithmetic, or is differentiated: automatic differentiation of a port that
            does not detach it. `summed`: what sums in the accumulator's format leave of that.
        d_scores: of the backward, whether dS is of P as computed or as stored for dV.
    """

    block: int = 64
    direction: Literal["forward", "backward"] = "forward"
    splits: int = 1
    cut: Literal["even", "blocks", "uneven"] = "even"
    merge: Literal["at once", "in order", "reversed", "tree"] = "at once"
    rescale: Literal["always", "lazy", "once"] = "always"
    lazy: float = 8.0
    base: Literal["2", "e"] = "2"
    scale: Literal["q", "scores", "exponent"] = "exponent"
    fused: bool = True
    relative_to: Literal["running", "block"] = "running"
    row_sum: Literal["unrounded", "rounded"] = "unrounded"
    normalise_first: bool = False
    division: Literal["quotient", "reciprocal", "lse"] = "quotient"
    seesaw: bool = False
    sink: Literal["end", "start"] = "end"
    heads: Literal["packed", "alone"] = "packed"
    maximum: Literal["constant", "differentiated", "summed"] = "constant"
    d_scores: Literal["unrounded", "rounded"] = "unrounded"

    @property
    def log_base(self) -> float:
        """Natural logarithm of the base."""
        return math.log(2) if self.base == "2" else 1.0

    def spans(self, s_k: int) -> list[Span]:
        """The keys of every split; a split may be empty.

        Math: even: ceil(s_k / n) each, as Triton's split-KV decode; blocks: whole blocks, as
        FlashMLA's schedule; uneven: one block first, and the rest even.
        """
        n, unit = self.splits, self.block if self.cut != "even" else 1
        if self.cut == "uneven" and n > 1:
            first = min(self.block, s_k)
            size = -(-(s_k - first) // (n - 1))
            ends = [0, first, *(min(s_k, first + size * i) for i in range(1, n))]
        else:
            size = -(-s_k // (n * unit)) * unit
            ends = [min(s_k, size * i) for i in range(n + 1)]
        return [*pairwise(ends)]

    def blocks(self, span: Span) -> Iterator[Span]:
        """The blocks of a split in reading order; the last key's block is the short one."""
        first, end = span
        found = [(at, min(at + self.block, end)) for at in range(first, end, self.block)]
        yield from reversed(found) if self.direction == "backward" else found
