"""Sequence lengths where kernels break: around 16, 32 and 64, single tokens, empty, many."""

from __future__ import annotations

EDGES = (
    2, 3, 7, 15, 16, 17, 31, 32, 33, 39, 47, 48, 63, 64, 65, 79, 96, 127, 128, 129, 192, 193, 207,
    256, 257,
)  # fmt: skip
"""Lengths 64 c + r with r = 0, 1, 2, 7, 15, 16, 17, 31, 32, 39, 47, 48, 63, up to four chunks and
one token."""

_EMPTY_WEIGHT = 10
"""Random sequences are empty as often as ten lengths together occur: 10 of 85."""

DRAWN_LENGTHS = (1, *([0] * _EMPTY_WEIGHT), *sorted({*EDGES, *range(5, max(EDGES), 5)}))
"""What a random length is chosen from: the edges, every fifth length, and the empty sequence.

One token is the simplest sequence and comes first, then the empty one, then all others in order, so
that failures shrink to the shortest.
"""

EMPTY_ENDS = (0, 1, 63, 64, 65, 0, 15, 130, 0)
"""Empty sequences first, inside and last, and tails of every kind."""

CONSECUTIVE_EMPTY = (0, 0, 5, 0, 0, 0, 66, 0, 0)
"""Runs of empty sequences."""

ALL_EMPTY = (0, 0)
"""No token at all: the final states are the initial ones."""

MANY = (16, 32, 64) * 43
"""129 short sequences, more than any device has cores."""
