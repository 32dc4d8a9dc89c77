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
    pool: Sequence[Row] = ({},),
    begun: Sequence[Row] = (),
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
        pool: levels of some axes; every row has those of one of them.
        begun: rows that there are already; what they hold is not missing.
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

    deciding = (*free, *least)

    def is_possible(row: Row, pool: Sequence[Row]) -> bool:
        return any(
            can_end(tuple((axis, given[axis]) for axis in deciding if axis in given))
            for some in pool
            if agree(some, row)
            for given in [{**some, **row}]
        )

    named = {axis: [(axis, level) for level in levels] for axis, levels in axes.items()}
    every = (
        one
        for some in combinations(sorted(axes), strength)
        for one in product(*(named[axis] for axis in some))
    )
    held = frozenset(one for row in begun for one in combined(row, strength))
    missing = dict.fromkeys(
        one for one in every if one not in held and is_possible(dict(one), pool)
    )
    rows = [*begun]
    while missing:
        row = dict(next(iter(missing)))
        left_of_pool = [some for some in pool if agree(some, row)]
        for axis in chance.sample(sorted(axes.keys() - row.keys()), len(axes) - len(row)):
            others = [list(some) for some in combinations(row.items(), strength - 1)]
            left = [
                level for level in axes[axis] if is_possible({**row, axis: level}, left_of_pool)
            ]
            row[axis] = max(
                left,
                key=lambda level: sum(
                    tuple(sorted([*some, (axis, level)])) in missing for some in others
                ),
            )
            left_of_pool = [some for some in left_of_pool if agree(some, row)]
        for one in combined(row, strength):
            missing.pop(one, None)
        rows.append({axis: row[axis] for axis in axes})
    return rows
