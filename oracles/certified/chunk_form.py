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

    @property
    def from_start(self) -> Rows:
        """exp of the gates summed over [0, i]: 0 once the channel has been reset."""
        return [
            [ZERO if n else x for n, x in zip(*row, strict=True)]
            for row in zip(self.resets, self.exp, strict=True)
        ]

    @property
    def to_end(self) -> Rows:
        """exp of the gates summed over (j, c]: 0 where a reset is still to come."""
        last, end = self.resets[-1], self.exp[-1]
        return [
            [
                x * y if n == m else ZERO
                for n, x, m, y in zip(resets, inverse, last, end, strict=True)
            ]
            for resets, inverse in zip(self.resets, self.inverse, strict=True)
        ]

    @cached_property
    def _columns(self) -> list[tuple[int, int]]:
        return sorted({(d, n) for row in self.resets for d, n in enumerate(row)})

    def spread(self, rows: Rows) -> arb_mat:
        """[c, K'], a column a channel and number of resets: sums pair between resets only."""
        return arb_mat(
            len(rows),
            len(self._columns),
            [
                row[d] if resets[d] == n else ZERO
                for row, resets in zip(rows, self.resets, strict=True)
                for d, n in self._columns
            ],
        )


def advance(tokens: Head, h: arb_mat) -> tuple[arb_mat, arb_mat]:
    """One chunk: o [c, V] and the next state. Math: sections 3.1 to 3.6."""
    decay = cumsum(tokens.g)
    Akk, Aqk = scores(tokens, decay)
    R = matrix(solve(Akk))
    from_start = decay.from_start
    w = R * matrix(scale_rows(tokens.beta, times(tokens.k, from_start)))
    u = R * matrix(scale_rows(tokens.beta, tokens.v))
    v_new = u - w * h
    o = matrix(times(tokens.q, from_start)) * h * tokens.scale + Aqk * v_new
    kg = matrix(times(tokens.k, decay.to_end))
    carried = matrix(scale_rows(from_start[-1], h.tolist()))
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


def scores(tokens: Head, decay: Decay) -> tuple[Rows, arb_mat]:
    """Math: 3.2. Akk, strictly lower, and Aqk, lower."""
    right = decay.spread(times(tokens.k, decay.inverse)).transpose()
    kk = scale_rows(tokens.beta, (decay.spread(times(tokens.k, decay.exp)) * right).tolist())
    qk = (decay.spread(times(tokens.q, decay.exp)) * right * tokens.scale).tolist()
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


def _lower(rows: Rows, diagonal: int) -> Rows:
    return [
        [x if j <= i + diagonal else ZERO for j, x in enumerate(row)] for i, row in enumerate(rows)
    ]
