"""KDA in chunks, in ball arithmetic.

Exponents of balls are unbounded, so the factorised exp(G_i) exp(-G_j), unusable in floating point,
is safe and lets every stage be a matrix product. A hard reset (g = -inf) restarts the sum of its
channel; the reset counts decide which pairs still see each other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from flint import arb, arb_mat

from oracles.certified.balls import (
    ONE,
    ZERO,
    Row,
    Rows,
    accumulate,
    inverse,
    matrix,
    of_each,
    scale_rows,
    times,
)
from oracles.certified.heads import Gates, Head, over_heads
from oracles.enclosure import CertifiedOutputs
from oracles.inputs import Inputs

SUBSTITUTION_ROWS = 8


def chunk(inputs: Inputs, *, bits: int, chunk_size: int = 64) -> CertifiedOutputs:
    """Chunk form of KDA with proven radii, one sequence and value head after the other.

    Math: section 3.

    Args:
        inputs: the call; every number enters exactly.
        bits: precision of the midpoints; a slow gate costs 0.1 bit a token at chunk size 64, and
            more in smaller chunks.
        chunk_size: C, tokens per chunk.
    Returns:
        Answer with the radius of every element.
    Raises:
        ValueError: bits or chunk_size is out of range.
    """
    if chunk_size < 1:
        raise ValueError(f"chunk_size: wanted at least 1 token, got {chunk_size}; 64 is usual")

    return over_heads(
        inputs,
        lambda head, h: in_chunks(head, h, chunk_size),
        bits=bits,
        method=f"chunk form of {chunk_size}",
    )


def in_chunks(head: Head, h: arb_mat, chunk_size: int) -> tuple[list[arb_mat], arb_mat]:
    """The output of every chunk [c, V] and the final state [K, V]."""
    outputs: list[arb_mat] = []
    for first in range(0, len(head.beta), chunk_size):
        o, h = advance(head.rows(slice(first, first + chunk_size)), h)
        outputs.append(o)
    return outputs, h


@dataclass(frozen=True)
class Decay:
    """The gates of one chunk, summed from its first token or from the last reset of the channel.

    Args:
        exp: [c][K] exp(G).
        inverse: [c][K] exp(-G).
        resets: [c][K] hard resets up to and including the row.
    """

    exp: Rows
    inverse: Rows
    resets: list[list[int]]

    @cached_property
    def _is_reset(self) -> bool:
        return any(self.resets[-1])

    def from_start(self, rows: Rows) -> Rows:
        """Of rows times exp(G), those decayed by all gates of [0, i]: 0 once a channel is reset."""
        if not self._is_reset:
            return rows
        return [
            [ZERO if n else x for n, x in zip(*row, strict=True)]
            for row in zip(self.resets, rows, strict=True)
        ]

    def to_end(self, rows: Rows) -> Rows:
        """Of rows times exp(-G), those decayed by the gates of (j, c]: 0 before another reset."""
        last, end = self.resets[-1], self.exp[-1]
        return [
            [x * y if n == m else ZERO for n, x, m, y in zip(resets, row, last, end, strict=True)]
            for resets, row in zip(self.resets, rows, strict=True)
        ]

    @cached_property
    def _columns(self) -> list[tuple[int, int]]:
        return sorted({(d, n) for row in self.resets for d, n in enumerate(row)})

    def spread(self, rows: Rows) -> arb_mat:
        """[c, K'], a column a channel and number of resets: sums pair between resets only."""
        if not self._is_reset:
            return matrix(rows)
        return arb_mat(
            len(rows),
            len(self._columns),
            [
                row[d] if resets[d] == n else ZERO
                for row, resets in zip(rows, self.resets, strict=True)
                for d, n in self._columns
            ],
        )


@dataclass(frozen=True)
class DecayedTokens:
    """Rows of one chunk times exp(G): q and beta k; and k times exp(-G). Made once: these products
    of two balls took as long as those of the matrices.
    """

    decay: Decay
    q: Rows
    beta_k: Rows
    k_inverse: Rows


def decayed(tokens: Head, decay: Decay) -> DecayedTokens:
    beta_k = times(scale_rows(tokens.beta, tokens.k), decay.exp)
    return DecayedTokens(decay, times(tokens.q, decay.exp), beta_k, times(tokens.k, decay.inverse))


def advance(tokens: Head, h: arb_mat) -> tuple[arb_mat, arb_mat]:
    """One chunk: o [c, V] and the next state. Math: sections 3.1 to 3.6."""
    decay = cumsum(tokens.g)
    rows = decayed(tokens, decay)
    Akk, Aqk = scores(rows, tokens.scale)
    R = matrix(solve(Akk))
    w = R * matrix(decay.from_start(rows.beta_k))
    u = R * matrix(scale_rows(tokens.beta, tokens.v))
    v_new = u - w * h
    o = matrix(decay.from_start(rows.q)) * h * tokens.scale + Aqk * v_new
    kg = matrix(decay.to_end(rows.k_inverse))
    carried = matrix(scale_rows(decay.from_start(decay.exp)[-1], h.tolist()))
    return o, carried + kg.transpose() * v_new


def cumsum(g: Gates) -> Decay:
    """Math: 3.1. The sums are exact, so a gate of -1e38 costs the gates after it nothing."""
    total, count = [ZERO] * len(g[0]), [0] * len(g[0])
    sums: Rows = []
    resets: list[list[int]] = []
    for row in g:
        total = accumulate(total, row)
        count = [n + (x == -math.inf) for n, x in zip(count, row, strict=True)]
        sums.append(total)
        resets.append(count)
    exp = [of_each(arb.exp, row) for row in sums]
    return Decay(exp, [of_each(inverse, row) for row in exp], resets)


def scores(rows: DecayedTokens, scale: arb) -> tuple[Rows, arb_mat]:
    """Math: 3.2. Akk, strictly lower, and Aqk, lower."""
    spread = rows.decay.spread
    right = spread(rows.k_inverse).transpose()
    kk, qk = spread(rows.beta_k) * right, spread(rows.q) * right * scale
    return _lower(kk, -1), matrix(_lower(qk, 0))


def solve(A: Rows) -> Rows:
    """(I + A)^-1 for A strictly lower, by halves: the lower left is -R22 A21 R11 (Math: 3.3)."""
    size = len(A)
    if size <= SUBSTITUTION_ROWS:
        return _substitute(A)
    half = size // 2
    first, second = solve([row[:half] for row in A[:half]]), solve([row[half:] for row in A[half:]])
    across = matrix([row[:half] for row in A[half:]])
    lower_left = (-(matrix(second) * across * matrix(first))).tolist()
    above = [[*row, *[ZERO] * (size - half)] for row in first]
    return above + [[*left, *right] for left, right in zip(lower_left, second, strict=True)]


def _substitute(A: Rows) -> Rows:
    R: Rows = []
    for i, a in enumerate(A):
        row: Row = [-sum((a[m] * R[m][j] for m in range(j, i)), ZERO) for j in range(i)]
        R.append([*row, ONE, *[ZERO] * (len(A) - i - 1)])
    return R


def _lower(balls: arb_mat, diagonal: int) -> Rows:
    zeros = [ZERO] * balls.ncols()
    return [
        [*row[:end], *zeros[end:]] for end, row in enumerate(balls.tolist(), start=diagonal + 1)
    ]
