"""Kernels that are compiled for every shape: the same combinations in few shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from kdaverify.adapters import find
from kdaverify.operators.kda.coverage import space
from kdaverify.problems import Problem, problems
from kdaverify.problems.combinations import COMPILED_WIDTHS, STRENGTH, CombinationRow, coverage
from kdaverify.problems.compiled_shapes import shapes

WIDTHS = (64, 128)


def kernels(rows: list[CombinationRow]) -> set[tuple[object, ...]]:
    """What a compiler makes a kernel for, that of the backward apart."""
    return {
        (
            p.dtype,
            p.HV,
            p.K,
            p.V,
            p.packed,
            p.state == "absent",
            row.direction.startswith("gradients"),
        )
        for row in rows
        for p in [row.problem]
    }


@pytest.mark.rotates
@pytest.mark.parametrize(("profile", "share"), [("smoke", 0.9), ("acceptance", 0.65)])
def test_every_combination_is_tested_with_fewer_kernels(profile: str, share: float) -> None:
    every = space(find("eager"), profile)
    every = replace(every, domain=replace(every.domain, widths=COMPILED_WIDTHS))
    plain, few = (
        replace(every, compiled=compiled).rows(STRENGTH[profile]) for compiled in (False, True)
    )
    covered, possible = coverage(few, plain, STRENGTH[profile])
    assert covered == possible
    assert len(kernels(few)) < share * len(kernels(plain))


def test_fewer_widths_are_below_and_above_every_tile_with_tails_and_odd_ones() -> None:
    tiles = {1 << (width - 1).bit_length() for width in COMPILED_WIDTHS}
    assert tiles == {16, 64, 128} and {64, 128} < {*COMPILED_WIDTHS}
    assert any(width % 2 for width in COMPILED_WIDTHS)
    found = replace(space(find("eager"), "smoke"), compiled=True).rows(2)
    assert (
        {row.problem.K for row in found} == {row.problem.V for row in found} == {*COMPILED_WIDTHS}
    )


@pytest.mark.parametrize("widths", [WIDTHS, (1, 8, 16, 32, 48, 64, 100, 128)])
def test_random_shapes_have_every_width_on_both_sides(widths: tuple[int, ...]) -> None:
    found = shapes(widths)
    assert len(found) <= 8
    assert {shape.K for shape in found} == {shape.V for shape in found} == {*widths}
    assert {shape.HV // shape.H for shape in shapes((1, 8, 16, 32, 48, 64, 100, 128))} == {1, 2, 3}


@given(problem=problems(dtype="bf16", widths=WIDTHS, compiled=True, max_cost=0.3))
@settings(max_examples=100, database=None, deadline=None)
def test_random_problems_have_one_of_few_shapes(problem: Problem) -> None:
    assert (problem.H, problem.HV, problem.K, problem.V) in shapes(WIDTHS)
