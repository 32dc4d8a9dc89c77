"""Faults that need several properties of a problem at once: no other question of a profile has
them, a row of its covering array does.
"""

from __future__ import annotations

from functools import cache
from typing import Final

import pytest

from kdaverify.campaign.cases import case
from kdaverify.campaign.suite_tests import questions
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.checks.resume import combined
from kdaverify.faults.planted.shapes import FAULTS, RIGHT, Shape, Shaped, ShapeFault
from kdaverify.operator import problem_from_json
from kdaverify.operators.kda.coverage import rows
from kdaverify.problems import Problem
from kdaverify.problems.combinations import CombinationRow
from kdaverify.problems.profiles import settings_for

NOT_THESE: Final = ("combined", "calls", "drift")
"""Calls and drift compare sizes of their own with each other."""


@cache
def _others(profile: str) -> frozenset[Shape]:
    """Shapes of the other suites: of the fixed cases, and of random ones of three seeds."""
    fixed = [
        test
        for question in questions(RIGHT, profile, random=False)
        for test in question.property_tests()
    ]
    drawn = questions(RIGHT, profile, random=True)
    numbers = range(settings_for(profile).max_examples * len(drawn))
    tested = [
        *fixed,
        *(
            test
            for seed in range(3)
            for number in numbers
            for test in case(drawn, seed, number).tests
        ),
    ]
    found = [
        (problem_from_json(test.problem), PROPERTIES[test.property].of_gradients)
        for test in tested
        if test.problem and test.property not in NOT_THESE
    ]
    return frozenset(
        Shape.of_problem(problem, backward=back)
        for problem, back in found
        if isinstance(problem, Problem)
    )


def _rows(fault: ShapeFault) -> list[CombinationRow]:
    called = [
        (row, Shape.of_problem(row.problem, backward=row.direction.startswith("gradients")))
        for row in rows(RIGHT, fault.profile)
    ]
    return [row for row, call in called if fault.shows(call)]


def _judged(fault: ShapeFault | None, row: CombinationRow) -> list[Outcome]:
    return combined(Shaped(fault) if fault else RIGHT, row.problem, direction=row.direction)


@pytest.mark.rotates
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_row_shows_it_and_no_other_question_has_these_properties(fault: ShapeFault) -> None:
    assert not [call for call in _others(fault.profile) if fault.shows(call)]
    assert any(outcome.status.rejects for row in _rows(fault) for outcome in _judged(fault, row))


@pytest.mark.rotates
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_the_right_kernel_passes_there(fault: ShapeFault) -> None:
    outcomes = [outcome for row in _rows(fault)[:1] for outcome in _judged(None, row)]
    assert outcomes and not any(outcome.status.rejects for outcome in outcomes)
