"""Packs that short keys do not distinguish: as many sequences and tokens, offsets of one sum or of
one polynomial hash.
"""

from __future__ import annotations

from typing import Final

HASHED: Final = 31
"""The factor of the usual polynomial hash: plans of attention were kept by that of lengths."""
SAME_SUM: Final = (1, -2, 1)
"""Added to three lengths in a row: of two ends one is a token further on, one a token before."""
SAME_HASH: Final = (1, -HASHED - 1, HASHED)
"""31^2 - 32 * 31 + 31 = 0, and 31 - 31 = 0 of the ends."""


def of_one_sum(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Other lengths whose offsets have the same sum; these where there are none."""
    return _moved(lengths, SAME_SUM)


def of_one_hash(lengths: tuple[int, ...]) -> tuple[int, ...]:
    """Other lengths of the same polynomial hash, as are their offsets; these where there are
    none.
    """
    return _moved(lengths, SAME_HASH)


def _moved(lengths: tuple[int, ...], change: tuple[int, ...]) -> tuple[int, ...]:
    size = len(change)
    for sign in (1, -1):
        for n in range(len(lengths) - size + 1):
            part = [x + sign * dx for x, dx in zip(lengths[n:], change, strict=False)]
            if min(part) >= 0:
                return (*lengths[:n], *part, *lengths[n + size :])
    return lengths
