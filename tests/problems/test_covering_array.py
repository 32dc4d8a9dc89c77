"""Every possible combination of two, or three, levels occurs in a row,
in few rows, the same ones every time.
"""

from __future__ import annotations

from itertools import combinations, product
from math import prod

import pytest

from kdaverify.problems.covering_array import Row, combined, covering_array

AXES = {
    "a": ("0", "1", "2"),
    "b": ("0", "1"),
    "c": ("0", "1", "2", "3"),
    "d": ("0", "1", "2"),
    "e": ("0", "1"),
}


def pairs_and_triples(rows: list[Row], strength: int) -> set[tuple[tuple[str, str], ...]]:
    return {one for row in rows for one in combined(row, strength)}


@pytest.mark.parametrize("strength", [2, 3])
@pytest.mark.parametrize("seed", range(5))
def test_every_combination_occurs_in_fewer_rows_than_there_are_products(
    strength: int, seed: int
) -> None:
    rows = covering_array(AXES, strength, seed=seed)
    every = sum(prod(len(AXES[axis]) for axis in some) for some in combinations(AXES, strength))
    assert len(pairs_and_triples(rows, strength)) == every
    least = max(prod(len(AXES[axis]) for axis in some) for some in combinations(AXES, strength))
    assert least <= len(rows) <= 2 * least
    assert all(list(row) == list(AXES) for row in rows)


def test_a_combination_that_no_possible_row_holds_is_left_out_and_every_other_one_occurs() -> None:
    def possible(row: Row) -> bool:
        return int(row["a"]) + int(row["c"]) <= 3 and (row["b"], row["d"]) != ("1", "2")

    rows = covering_array(AXES, 3, bound=("a", "b", "c", "d"), possible=possible)
    whole = [
        row
        for levels in product(*AXES.values())
        if possible(row := dict(zip(AXES, levels, strict=True)))
    ]
    assert all(map(possible, rows))
    assert pairs_and_triples(rows, 3) == pairs_and_triples(whole, 3)


def test_axes_that_only_cost_are_given_their_least_until_they_are_chosen() -> None:
    def affordable(row: Row) -> bool:
        return int(row["a"]) + int(row["c"]) + int(row["d"]) <= 4

    rows = covering_array(AXES, 2, bound=("a",), growing=("c", "d"), possible=affordable)
    whole = [
        row
        for levels in product(*AXES.values())
        if affordable(row := dict(zip(AXES, levels, strict=True)))
    ]
    assert pairs_and_triples(rows, 2) == pairs_and_triples(whole, 2)


def test_rows_of_a_pool_have_its_levels_and_rows_that_are_there_are_kept_and_completed() -> None:
    pool: list[Row] = [{"a": "0", "c": "1"}, {"a": "1", "c": "2"}]
    few = covering_array(AXES, 2, pool=pool)
    assert {(row["a"], row["c"]) for row in few} == {("0", "1"), ("1", "2")}
    possible = [
        row
        for levels in product(*AXES.values())
        for row in [dict(zip(AXES, levels, strict=True))]
        if any(some.items() <= row.items() for some in pool)
    ]
    assert pairs_and_triples(few, 2) == pairs_and_triples(possible, 2)
    whole = covering_array(AXES, 2, begun=few)
    assert whole[: len(few)] == few
    assert pairs_and_triples(whole, 2) == pairs_and_triples(covering_array(AXES, 2), 2)


def test_rows_depend_on_the_seed_alone() -> None:
    assert (
        covering_array(AXES, 2, seed=1)
        == covering_array(AXES, 2, seed=1)
        != covering_array(AXES, 2, seed=2)
    )


def test_a_row_brings_along_the_one_beside_it_whose_combinations_are_not_missing_then() -> None:
    def beside(row: Row) -> Row | None:
        return {**row, "b": "0"} if row["b"] == "1" else None

    rows = covering_array(AXES, 2, beside=beside)
    assert all({**row, "b": "0"} in rows for row in rows if row["b"] == "1")
    assert pairs_and_triples(rows, 2) == pairs_and_triples(covering_array(AXES, 2), 2)
    begun = [row for row in rows if row["b"] == "1"]
    alone = covering_array(AXES, 2, begun=begun)
    assert len(rows) < len(alone) + len(begun)
