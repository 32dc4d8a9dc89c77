"""Case i of a seed is always the same, and cases are as varied as the suites' own."""

from __future__ import annotations

from collections import Counter

import pytest

from kdaverify.adapters.registry import find
from kdaverify.campaign.cases import case
from kdaverify.campaign.suite_tests import SuiteTest, questions
from kdaverify.operator import problem_from_json
from kdaverify.operators.pointwise.cases import PAST_16_BITS
from kdaverify.plugin.suite_files import shipped

SEED = 7


@pytest.fixture(scope="module")
def random_tests() -> tuple[SuiteTest, ...]:
    return questions(find("eager"), "smoke", random=True)


def test_every_suite_is_tested_at_random_or_fixed(random_tests: tuple[SuiteTest, ...]) -> None:
    fixed = questions(find("eager"), "smoke", random=False)
    # eager has no variants: the suite of options has no case for it.
    suites = shipped() - {"options"}
    assert {question.property for question in (*random_tests, *fixed)} == suites
    # What ends an axis of a grid ends it in every format, and is tested in one.
    assert all(
        question.property_tests()
        for question in fixed
        if question.chosen.get("name") != PAST_16_BITS
    )


def test_a_case_depends_on_its_number_alone(random_tests: tuple[SuiteTest, ...]) -> None:
    forwards = [case(random_tests, SEED, number).tests for number in range(20)]
    backwards = [case(random_tests, SEED, number).tests for number in reversed(range(20))]
    assert forwards == backwards[::-1]
    assert forwards != [case(random_tests, SEED + 1, number).tests for number in range(20)]


def test_cases_are_varied_and_not_the_simplest_ones(random_tests: tuple[SuiteTest, ...]) -> None:
    cases = [case(random_tests, SEED, number) for number in range(120)]
    tests = [test for found in cases for test in found.tests]
    problems = [problem_from_json(test.problem) for test in tests]
    kda = [problem for problem in problems if problem.op == "kda"]
    assert len({test.problem for test in tests}) > 0.95 * len(tests)
    assert (
        len({problem.gate for problem in kda}) > 10 and len({problem.dtype for problem in kda}) == 4
    )
    assert sum(getattr(problem, "T", 0) > 64 for problem in kda) > len(kda) / 4
    assert (
        Counter(found.question.property for found in cases).most_common(1)[0][1] < len(cases) * 0.6
    )
