"""Smaller problems of KDA: what a failing one is replaced by while it fails in the same way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any, Final

from kdaverify.operators.sizes import WIDTHS, below
from kdaverify.problems import Problem
from kdaverify.problems.regimes import REGIMES

LENGTHS: Final = (1, 2, 3, 4, 8, 16, 17, 32, 33, 64, 65, 66, 80, 128, 129, 130, 192)
"""Tokens that are tried, fewest first: around sub-blocks and chunks, where faults begin."""
LEAPS: Final = (2, 17, 66, 130)
NARROW: Final = 4
FAMILIAR: Final = {
    "gate": ("mild", "log-sigmoid"),
    "key": ("random",),
    "beta": ("uniform",),
    "state": ("absent", "random"),
    "value": ("normal",),
}
"""Regimes that hide nothing and add nothing."""

Change = dict[str, Any]


def smaller(
    problem: Problem, detail: Mapping[str, Any]
) -> Iterator[tuple[Change, Mapping[str, Any]]]:
    """Batch, heads, widths, scale; sequences and tokens; regimes: changes with their detail."""
    changes = chain(_leaps(problem, detail), _heads_and_widths(problem))
    yield from ((change, detail) for change in changes)
    if problem.lengths is not None:
        yield from ((change, detail) for change in _packs(problem))
    else:
        for tokens in below(problem.T, LENGTHS):
            yield from _cut(problem, detail, tokens)
    regimes = (
        {axis: name}
        for axis in REGIMES
        for name in FAMILIAR[axis]
        if getattr(problem, axis) not in FAMILIAR[axis]
    )
    yield from ((change, detail) for change in regimes)


def _leaps(problem: Problem, detail: Mapping[str, Any]) -> Iterator[Change]:
    """Few tokens, heads and channels at once, so that every later try is inexpensive."""
    if problem.packed or "cut" in detail:
        return
    small = {
        "B": 1,
        "H": 1,
        "HV": 2 if problem.HV > problem.H else 1,
        "K": min(problem.K, NARROW),
        "V": min(problem.V, NARROW),
    }
    yield from ({**small, "T": tokens} for tokens in below(problem.T, LEAPS))


def _heads_and_widths(problem: Problem) -> Iterator[Change]:
    if problem.B > 1:
        yield {"B": 1}
    yield from ({"H": 1, "HV": 1}, {"H": 1, "HV": 2}, {"H": 1}, {"HV": problem.H})
    yield from ({"K": size, "V": size} for size in below(min(problem.K, problem.V), WIDTHS))
    yield from (
        {axis: size} for size in WIDTHS for axis in ("K", "V") if size < getattr(problem, axis)
    )
    if problem.scale is not None:
        yield {"scale": None}


def _packs(problem: Problem) -> list[Change]:
    """Without one sequence, without padding, or with one sequence shorter."""
    lengths, padding = problem.lengths or (), problem.T - sum(problem.lengths or ())
    fewer = (
        [lengths[:n] + lengths[n + 1 :] for n in range(len(lengths))] if len(lengths) > 1 else []
    )
    # more than are dropped one by one
    halves = (
        [lengths[: len(lengths) // 2], lengths[len(lengths) // 2 :]] if len(lengths) > 3 else []
    )
    shorter = [
        (*lengths[:n], tokens, *lengths[n + 1 :])
        for n, length in enumerate(lengths)
        for tokens in below(length, LENGTHS)
    ]
    packs = [
        {"lengths": pack, "T": sum(pack) + padding}
        for pack in (*halves, *fewer, *shorter)
        if sum(pack) + padding
    ]
    return [*([{"T": sum(lengths)}] if padding and sum(lengths) else []), *packs]


def _cut(
    problem: Problem, detail: Mapping[str, Any], tokens: int
) -> Iterator[tuple[Change, Mapping[str, Any]]]:
    """Fewer tokens; of a run that is cut, fewer before it or behind."""
    cut = detail.get("cut")
    if cut is None:
        yield {"T": tokens}, detail
        return
    behind = problem.T - cut
    ways = [(tokens, cut)] if tokens > cut else [(tokens + behind, tokens)] if tokens < cut else []
    for T, at in ways:
        yield {"T": T}, {**detail, "cut": at}
