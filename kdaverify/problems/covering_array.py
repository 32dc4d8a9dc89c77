"""Covering arrays: few rows in which every possible combination of two,
or three, levels of different axes occurs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import combinations, product
from random import Random

Row = dict[str, str]
Combination = tuple[tuple[str, str], ...]


def combined(row: Row, strength: int) -> Iterator[Combination]:
    """The combinations of `strength` levels in a row, axes in alphabetical order."""
    return combinations(sorted(row.items()), strength)


def covering_array(
    axes: Mapping[str, Sequence[str]],
    strength: int,
    *,
    bound: Sequence[str] = (),
    growing: Sequence[str] = (),
    possible: Callable[[Row], bool] = lambda _: True,
    seed: int = 0,
) -> list[Row]:
    """Rows, each a level of every axis, that hold every combination of `strength` levels that a
    possible row can hold.

    Math: greedy, one row at a time: it begins with a combination that no row has yet and takes,
    axis by axis in random order, the level
    that adds most new combinations. Source: Cohen, Dalal, Fredman, Patton, "The AETG system", IEEE
    TSE 23 (1997).

    Args:
        axes: the levels of each, the simplest first: where two add as much, the first is taken.
        bound, growing: the axes that decide whether a row is possible; with a level of a growing
            one, rows are possible only if they are with every simpler one.
        possible: whether there is a row with these levels of those axes.
        seed: of the order in which axes are filled.
    """
    chance = Random(seed)  # noqa: S311 # an order, no secret
    free, least = (
        [axis for axis in bound if axis in axes],
        {axis: axes[axis][0] for axis in growing if axis in axes},
    )

    @cache
    def can_end(chosen: Combination) -> bool:
        given = {**least, **dict(chosen)}
        left = [axis for axis in free if axis not in given]
        return any(
            possible({**given, **dict(zip(left, levels, strict=True))})
            for levels in product(*(axes[axis] for axis in left))
        )

    def is_possible(row: Row) -> bool:
        return can_end(tuple((axis, row[axis]) for axis in (*free, *least) if axis in row))

    named = {axis: [(axis, level) for level in levels] for axis, levels in axes.items()}
    every = (
        one
        for some in combinations(sorted(axes), strength)
        for one in product(*(named[axis] for axis in some))
    )
    missing = dict.fromkeys(one for one in every if is_possible(dict(one)))
    rows = list[Row]()
    while missing:
        row = dict(next(iter(missing)))
        for axis in chance.sample(sorted(axes.keys() - row.keys()), len(axes) - len(row)):
            others = [list(some) for some in combinations(row.items(), strength - 1)]
            left = [level for level in axes[axis] if is_possible({**row, axis: level})]
            row[axis] = max(
                left,
                key=lambda level: sum(
                    tuple(sorted([*some, (axis, level)])) in missing for some in others
                ),
            )
        for one in combined(row, strength):
            missing.pop(one, None)
        rows.append({axis: row[axis] for axis in axes})
    return rows
