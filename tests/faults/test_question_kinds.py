"""Every kind of question has at least four planted faults; one of each is rejected by its own
questions, where its twin passes.
"""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.question_kinds import row
from benchmarks.suite_runs import property_tests
from kdaverify.adapters import find
from kdaverify.faults.planted.catalogue import PLANTED
from kdaverify.faults.planted.questions import QUESTIONS

pytestmark = pytest.mark.whole_run

# The quickest of each kind whose questions smoke has; the others are judged by their checks' own
# tests and by the benchmark.
SAMPLE = ("COMB4", "WIDE1", "MAG1", "PROC1", "DEEP2", "ENT3", "IDS8")
RARELY = 10_000
"""No question of another kind: all of them are judged by the benchmark."""


def test_every_kind_has_four_faults_at_least() -> None:
    count = Counter(fault.question for fault in PLANTED.values())
    assert count.keys() == QUESTIONS.keys() and min(count.values()) >= 4


@pytest.mark.parametrize("name", PLANTED)
def test_each_is_an_implementation_with_a_twin_that_takes_the_same_calls(name: str) -> None:
    wrong, right = find(f"fault:{name}"), PLANTED[name].right()
    assert wrong.name == f"fault:{name}"
    assert (wrong.dtypes, wrong.conventions, wrong.isolated) == (
        right.dtypes,
        right.conventions,
        right.isolated,
    )


@pytest.mark.rotates
@pytest.mark.parametrize("name", SAMPLE)
def test_its_own_questions_reject_it_and_accept_its_twin(name: str) -> None:
    found = row((name, RARELY))
    assert found.own and not found.twin


def test_a_twin_is_tested_as_in_a_suite() -> None:
    assert {test.property for test in property_tests(PLANTED["DEEP1"].right(), "smoke")} > {
        "forward",
        "calls",
        "combined",
        "laws",
        "gradients",
    }
