"""Lists of cache slots, each pattern for a fault that it exposes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

import torch
from torch import Tensor

from kdaverify.operators.attention.regimes import TILE

Lists = Literal[
    "distinct",
    "sorted",
    "duplicates",
    "holes",
    "leading",
    "tail",
    "last-place",
    "empty",
    "none",
    "ends",
    "repeated",
    "runs",
]
NOTHING: Final = -1
OUTSIDE: Final = (-1, 2147480000, -7, -2147480000)
"""What entries that name nothing may hold where all that are no slots may occur; the second stands
for the number of slots too, which is the nearest of them."""
ABSENT: Final = 3
"""In patterns with entries that name nothing, one of so many."""
INT32: Final = 2**31 - 1
REPEATED: Final = 256
"""Times that a slot occurs in lists that repeat one: more than a byte counts, and once more in
every second list. A kernel that read distinct slots had such a count, and was accepted."""
FEW: Final = 4
"""Times that an index occurs in lists with duplicates, about."""
Pattern = Callable[[Tensor, Tensor, int], Tensor]


def _distinct(slots: Tensor, _draws: Tensor, _query: int) -> Tensor:
    return slots


def _sorted(slots: Tensor, _draws: Tensor, _query: int) -> Tensor:
    return slots.sort().values


def _duplicates(slots: Tensor, draws: Tensor, _: int) -> Tensor:
    """Also where the list is longer than the cache: a backward that took the number of slots for
    that of entries dropped those behind it, and was accepted.
    """
    return slots[(draws * max(len(slots) // FEW, 1)).long()]


def _holes(slots: Tensor, draws: Tensor, _: int) -> Tensor:
    """The first entry names something: whole tiles of nothing are in `leading`."""
    absent = draws[: len(slots)] < 1 / ABSENT
    absent[0] = False
    return slots.masked_fill(absent, NOTHING)


def _leading(slots: Tensor, _draws: Tensor, _query: int) -> Tensor:
    """At least a tile of nothing, where the list is longer than that."""
    count = max(TILE + 1, len(slots) // 2) if len(slots) > TILE + 1 else len(slots) - 1
    return slots.masked_fill(torch.arange(len(slots)) < count, NOTHING)


def _tail(slots: Tensor, _draws: Tensor, _query: int) -> Tensor:
    kept = len(slots) - max(len(slots) // ABSENT, 1)
    return slots.masked_fill(torch.arange(len(slots)) >= max(kept, 1), NOTHING)


def _last_place(slots: Tensor, _draws: Tensor, _query: int) -> Tensor:
    return slots.masked_fill(torch.arange(len(slots)) < len(slots) - 1, NOTHING)


def _empty(slots: Tensor, draws: Tensor, query: int) -> Tensor:
    """Every second query names nothing."""
    return _none(slots, draws, query) if query % 2 == 0 else _holes(slots, draws, query)


def _none(slots: Tensor, _draws: Tensor, _query: int) -> Tensor:
    return torch.full_like(slots, NOTHING)


def _repeated(slots: Tensor, draws: Tensor, query: int) -> Tensor:
    """At random places, which all are where there are fewer."""
    places = draws[: len(slots)].argsort()[: REPEATED + query % 2]
    return slots.index_fill(0, places, int(slots[places[0]]))


PATTERNS: Final[Mapping[str, tuple[str, Pattern]]] = {
    "distinct": ("distinct slots in no order", _distinct),
    "sorted": ("distinct slots in rising order", _sorted),
    "duplicates": ("every slot several times", _duplicates),
    "holes": ("a third of the entries names nothing", _holes),
    "leading": ("more than the first tile names nothing", _leading),
    "tail": ("the final third names nothing", _tail),
    "last-place": ("the final entry alone names a slot", _last_place),
    "empty": ("every second query names nothing at all", _empty),
    "none": ("no query names anything", _none),
    "ends": ("the first and the last slot of the cache, among others", _distinct),
    "repeated": ("one slot 256 times, in every second list 257 times", _repeated),
    "runs": ("slots in a row, but that some are the one before, named twice", _distinct),
}


def listed(pattern: str, slots: Tensor, draws: Tensor, topk: int, query: int) -> Tensor:
    """One list [topk] of a query; what the pattern does not fill names nothing.

    Args:
        slots: [n] that may be named, n >= 1, in random order; draws: [topk] of [0, 1).
        query: its number.
    """
    found = PATTERNS[pattern][1](slots[:topk], draws, query)
    return torch.nn.functional.pad(found, (0, topk - len(found)), value=NOTHING)


def with_ends(lists: Tensor, slots: int) -> Tensor:
    """Lists [n, topk] that name the last slot, and the first if longer, at other places."""
    count, topk = lists.shape
    found, query = lists.clone(), torch.arange(count)
    found[query, (query + topk // 2) % topk] = 0
    found[query, query % topk] = slots - 1
    return found


def in_runs(named: Tensor, count: int, topk: int) -> Tensor:
    """Lists [count, topk] of rows of slots, each from another start; for a slot that is not named
    stands the one before it. A tile that was taken for whole by three of its entries was accepted.

    Args:
        named: [n] slots that lists may name.
    """
    known = named.sort().values
    first, last = int(known[0]), int(known[-1])
    starts = torch.arange(count) % max(last - first + 2 - topk, 1) + first
    wanted = starts[:, None] + torch.arange(topk)
    before = known[torch.searchsorted(known, wanted, right=True) - 1]
    return before.masked_fill(wanted > last, NOTHING)


def outside(indices: Tensor, slots: int, row: Tensor) -> Tensor:
    """The lists with all kinds of numbers that are no slots for those that name nothing: those too
    whose offset in elements or bytes, as int32 or uint32, wraps into a slot.

    Args:
        row: of the cache, a slot's.
    """
    wrapped = [-(-(2**32) // n) + 2 for n in (row.numel(), row.numel() * row.itemsize)]
    fitting = [at for at in wrapped if slots <= at <= INT32]
    kinds = torch.tensor([slots, *OUTSIDE, *fitting])
    at = torch.arange(indices.numel()).view(indices.shape) % len(kinds)
    return torch.where(indices < 0, kinds[at], indices)
