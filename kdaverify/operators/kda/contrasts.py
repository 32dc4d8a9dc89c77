"""Problems of KDA that differ in one thing: length, packing, heads, widths, state, regime.

A panel varies many things at once, and where nearly every case has a tail, a tail separates
nothing. One factor at a time does: the same problem with 64 tokens passes, with 65 it fails.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final

from kdaverify.problem_operator import ContrastAxis
from kdaverify.problems import Problem

LENGTHS: Final = (64, 65, 1, 32, 128, 16, 2, 129, 63, 17, 3)
"""Whole chunks, one token more and one less; the first few separate most kinds of fault."""
WIDE: Final = 128
GATES: Final = ("zero", "mild", "bound-5", "log-sigmoid")
"""No decay, a little, as much as models train with, and what a random model has."""
PADDING: Final = 9

Change = dict[str, Any]


def contrasts(p: Problem, detail: Mapping[str, Any]) -> list[ContrastAxis]:
    """Axes and their levels, structure before values.

    Args:
        detail: a run that is cut keeps its length.
    """
    whole = "cut" not in detail
    found: tuple[tuple[tuple[str, ...], Iterable[Change]], ...] = (
        (("T ", "a pack with a sequence that starts"), _lengths(p) if whole else ()),
        (("pack", "a pack"), _packs(p) if whole else ()),
        (("state",), ({"state": name} for name in ("absent", "random"))),
        (("H",), _heads(p)),
        (("K", "V"), _widths(p)),
        (("B",), () if p.packed else ({"B": 1}, {"B": 2})),
        (("gate", "a gate"), ({"gate": name} for name in GATES)),
        (("key",), ({"key": name} for name in ("random", "one-hot"))),
        (("beta",), ({"beta": name} for name in ("uniform", "one"))),
    )
    return [
        ContrastAxis(about, tuple(change for change in levels if _changes(p, change)))
        for about, levels in found
    ]


def _changes(p: Problem, change: Change) -> bool:
    return any(getattr(p, name) != value for name, value in change.items())


def _lengths(p: Problem) -> Iterator[Change]:
    """Of a pack, of its longest sequence."""
    for tokens in LENGTHS:
        if p.lengths is None:
            yield {"T": tokens}
        elif any(p.lengths):
            longest = p.lengths.index(max(p.lengths))
            yield _pack((*p.lengths[:longest], tokens, *p.lengths[longest + 1 :]), _padding(p))


def _packs(p: Problem) -> Iterator[Change]:
    """Dense for packed and the reverse; packs without padding, empties, all but the longest."""
    if p.lengths is None:
        if p.B == 1:
            yield from (_pack((p.T,), 0), _pack((p.T, p.T), 0))
        return
    full, padding = tuple(filter(None, p.lengths)), _padding(p)
    if full:
        yield {"lengths": None, "T": max(full)}
        yield _pack((max(full),), padding)
        yield _pack(full, padding)
    yield from (_pack(p.lengths, 0), _pack((*p.lengths, 0), padding), _pack(p.lengths, PADDING))


def _pack(lengths: tuple[int, ...], padding: int) -> Change:
    return {"lengths": lengths, "T": sum(lengths) + padding}


def _padding(p: Problem) -> int:
    return p.T - sum(p.lengths or ())


def _heads(p: Problem) -> Iterator[Change]:
    yield from ({"HV": p.H}, {"H": 1, "HV": 1}, {"HV": 2 * p.H}, {"H": 2, "HV": 2})


def _widths(p: Problem) -> Iterator[Change]:
    """Equal, one twice the other, and half of each."""
    K, V = p.K, p.V
    pairs = chain(
        ((K, K), (V, V), (K, 2 * K), (2 * V, V)),
        ((K, V // 2), (K // 2, V), (16, 16)) if max(K, V) > 16 else (),
    )
    yield from (
        {"K": k, "V": v} for k, v in dict.fromkeys(pairs) if min(k, v) and max(k, v) <= WIDE
    )
