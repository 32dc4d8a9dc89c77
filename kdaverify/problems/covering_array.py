"""Covering arrays: few rows with every combination of two or three axes' levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations, product
from random import Random

Row = dict[str, str]
Combination = tuple[tuple[str, str], ...]


def combined(row: Row, strength: int) -> Iterator[Combination]:
    """The combinations of `strength` levels in a row, axes in alphabetical order."""
    return combinations(sorted(row.items()), strength)


def agree(some: Row, row: Row) -> bool:
    """Whether two partial rows have the same level on every axis that both have."""
    return all(row.get(axis, level) == level for axis, level in some.items())


def covering_array(
    axes: Mapping[str, Sequence[str]],
    strength: int,
    *,
    bound: Sequence[str] = (),
    growing: Sequence[str] = (),
    possible: Callable[[Row], bool] = lambda _: True,
    beside: Callable[[Row], Row | None] = lambda _: None,
    pool: Sequence[Row] = ({},),
    begun: Sequence[Row] = (),
    seed: int = 0,
) -> list[Row]:
    """Rows, each a level of every axis, with every possible combination of `strength`.

    Math: greedy, one row at a time: it begins with a combination that no row has yet and takes,
    axis by axis in random order, the level
    that adds most new combinations. Source: Cohen, Dalal, Fredman, Patton, "The AETG system", IEEE
    TSE 23 (1997).

    Args:
        axes: the levels of each, the simplest first: where two add as much, the first is taken.
        bound, growing: the axes that decide whether a row is possible; with a level of a growing
            one, rows are possible only if they are with every simpler one.
        possible: whether there is a row with these levels of those axes.
        beside: the row that a new row brings along, itself a possible one.
        pool: levels of some axes; every row has those of one of them.
        begun: rows that there are already; what they hold is not missing.
        seed: of the order in which axes are filled.
    """
    chance = Random(seed)  # noqa: S311 # an order, no secret
    space = _Possible(axes, possible, bound, growing)
    missing = _missing(axes, strength, begun, lambda row: space.holds(row, pool))
    rows = [*begun]
    while missing:
        row = dict(next(iter(missing)))
        near = [some for some in pool if agree(some, row)]
        for axis in chance.sample(sorted(axes.keys() - row.keys()), len(axes) - len(row)):
            left = [level for level in axes[axis] if space.holds({**row, axis: level}, near)]
            row[axis] = _most_new(row, axis, left, missing, strength)
            near = [some for some in near if agree({axis: row[axis]}, some)]
        for new in filter(None, (row, beside(row))):
            for one in combined(new, strength):
                missing.pop(one, None)
            rows.append({axis: new[axis] for axis in axes})
    return rows


class _Possible:
    """Which partial rows some possible row holds; answers are kept, most rows share them.

    Args:
        axes, possible, bound, growing: as `covering_array` has them.
    """

    def __init__(
        self,
        axes: Mapping[str, Sequence[str]],
        possible: Callable[[Row], bool],
        bound: Sequence[str],
        growing: Sequence[str],
    ) -> None:
        self._axes, self._possible = axes, possible
        self._free = [axis for axis in bound if axis in axes]
        self._least = {axis: axes[axis][0] for axis in growing if axis in axes}
        self._known = dict[Combination, bool]()

    def holds(self, row: Row, pool: Sequence[Row]) -> bool:
        """Whether a possible row of the pool has these levels."""
        return any(self._can_end({**some, **row}) for some in pool if agree(some, row))

    def _can_end(self, row: Row) -> bool:
        key = tuple((axis, row[axis]) for axis in (*self._free, *self._least) if axis in row)
        if key not in self._known:
            given = {**self._least, **dict(key)}
            left = [axis for axis in self._free if axis not in given]
            self._known[key] = any(
                self._possible({**given, **dict(zip(left, levels, strict=True))})
                for levels in product(*(self._axes[axis] for axis in left))
            )
        return self._known[key]


def _missing(
    axes: Mapping[str, Sequence[str]],
    strength: int,
    begun: Sequence[Row],
    is_possible: Callable[[Row], bool],
) -> dict[Combination, None]:
    """The possible combinations that no row holds yet, in a fixed order."""
    named = {axis: [(axis, level) for level in levels] for axis, levels in axes.items()}
    held = frozenset(one for row in begun for one in combined(row, strength))
    every = (
        one
        for some in combinations(sorted(axes), strength)
        for one in product(*(named[axis] for axis in some))
    )
    return dict.fromkeys(one for one in every if one not in held and is_possible(dict(one)))


def _most_new(
    row: Row, axis: str, levels: Sequence[str], missing: Mapping[Combination, None], strength: int
) -> str:
    """The first level of `axis` with which the row holds most missing combinations."""
    others = [*combinations(sorted(row.items()), strength - 1)]
    # The axes of a combination are in order: where this one belongs is the same for every level.
    parts = [
        (tuple(x for x in some if x[0] < axis), tuple(x for x in some if x[0] > axis))
        for some in others
    ]
    return max(
        levels,
        key=lambda level: sum(
            (*before, (axis, level), *after) in missing for before, after in parts
        ),
    )
