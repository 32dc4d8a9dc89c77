"""The line over all failures names the axis of the fault, and of two faults both; failures without
a common factor get no line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Final

import pytest

from kdaverify.adapters.eager import EAGER
from kdaverify.campaign.suite_tests import questions
from kdaverify.checks.status import Status
from kdaverify.diagnosis.common_factor import common_factors, in_words
from kdaverify.operator import operator_of, problem_from_json
from kdaverify.problems import Problem
from kdaverify.verdicts.verdict import Verdict

Fails = Callable[[Problem], bool]
DTYPES: Final = ("bf16", "fp32")


@pytest.fixture(scope="module")
def cases() -> list[Problem]:
    """What smoke tests with fixed problems, whole calls alone."""
    tested = [
        test
        for suite in questions(EAGER, "smoke", random=False)
        if suite.property in ("panel", "combined")
        for test in suite.property_tests()
    ]
    problems = [problem_from_json(test.problem) for test in tested]
    return [problem for problem in problems if problem.dtype in DTYPES]


def verdicts(cases: Sequence[Problem], fails: Fails) -> list[Verdict]:
    return [
        Verdict(
            implementation="port",
            property="panel",
            dtype=problem.dtype,
            regime=problem.regime,
            case=problem.id,
            problem=problem.to_json(),
            output=output,
            status=Status.FAIL if output == "o" and fails(problem) else Status.PASS,
        )
        for problem in cases
        for output in ("o", "final_state")
    ]


def deepest(problem: Problem) -> float:
    """The least sum of gates of a channel over a chunk."""
    gates, least = problem.decays().double(), 0.0
    for b, first, length in problem.spans:
        for start in range(first, first + length, 64):
            least = min(
                least, float(gates[b, start : min(start + 64, first + length)].sum(0).min())
            )
    return least


FAULTS: Final[dict[str, tuple[Fails, str]]] = {
    "shared heads": (lambda p: p.HV > p.H, "HV > H"),
    "a second chunk": (lambda p: max(length for _, _, length in p.spans) > 64, "T > 64"),
    "a second tile of values": (lambda p: p.V > 64, "V > 64"),
    "odd widths": (lambda p: bool(p.K & (p.K - 1)), "K no power of two"),
    "overflow of a chunk": (lambda p: deepest(p) < -88, "gates that sum below -88 in 64 tokens"),
    "packs": (lambda p: p.packed, "packed"),
    "no state": (lambda p: p.state == "absent", "state = absent"),
    "one format": (lambda p: p.dtype == "bf16", "dtype = bf16"),
    "one format of shared heads": (
        lambda p: p.dtype == "bf16" and p.HV > p.H,
        "HV > H and dtype = bf16",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_axis_of_a_fault_is_named(cases: list[Problem], fault: str) -> None:
    fails, said = FAULTS[fault]
    (found,) = common_factors(verdicts(cases, fails))
    assert {*found.said.split(" and ")} == {*said.split(" and ")}
    assert str(found).startswith(f"only where {found.said}: ") and found.outputs == ("o",)
    assert (
        found.failing
        == found.cases
        == sum(fails(problem) for problem in {p.id: p for p in cases}.values())
    )


def test_a_fault_that_rounding_hides_now_and_then_is_named_still(cases: list[Problem]) -> None:
    random = Random(3)
    (found,) = common_factors(verdicts(cases, lambda p: p.HV > p.H and random.random() < 0.8))
    assert found.said == "HV > H" and found.failing < found.cases


def test_two_faults_are_two(cases: list[Problem]) -> None:
    found = common_factors(verdicts(cases, lambda p: p.HV > p.H or p.K > 64))
    assert {one.said for one in found} == {"HV > H", "K > 64"}


@pytest.mark.parametrize("seed", range(20))
def test_failures_without_a_common_factor_get_no_sentence(cases: list[Problem], seed: int) -> None:
    random = Random(seed)
    assert common_factors(verdicts(cases, lambda _: random.random() < 0.3)) == []


def test_a_kernel_that_is_right_has_nothing_in_common(cases: list[Problem]) -> None:
    assert common_factors(verdicts(cases, lambda _: False)) == []


def test_a_kernel_that_fails_everywhere_says_so_and_what_is_right(cases: list[Problem]) -> None:
    (found,) = common_factors(verdicts(cases, lambda _: True))
    count = f"{found.cases:,} of {found.cases:,} cases"
    assert in_words([found]) == [f"fails everywhere: {count} (in o; never in final_state)"]


def test_one_way_to_fail_has_an_axis_beside_another_that_has_none(cases: list[Problem]) -> None:
    random = Random(5)
    race = {problem.id for problem in cases if random.random() < 0.4}
    rows = verdicts(cases, lambda problem: problem.id in race)
    rows = [
        row.model_copy(update={"status": Status.NONFINITE})
        if row.output == "o" and problem_from_json(row.problem).K > 64
        else row
        for row in rows
    ]
    (said,) = in_words(common_factors(rows))
    assert said.startswith("gives NaN or infinity only where K > 64: ")


def test_an_output_that_fails_elsewhere_has_a_sentence_of_its_own(cases: list[Problem]) -> None:
    rows = [
        row.model_copy(update={"status": Status.FAIL})
        if row.output == "final_state" and problem_from_json(row.problem).K > 64
        else row
        for row in verdicts(cases, lambda p: p.packed or p.HV > p.H)
    ]
    first, second, own = in_words(common_factors(rows))
    assert " where packed: " in first and " where HV > H: " in second
    assert own.startswith("final_state fails only where K > 64: ") and "(in " not in own


def test_packs_whose_sequences_start_within_a_chunk_have_a_trait(cases: list[Problem]) -> None:
    trait = "a pack with a sequence that starts at no multiple of 64 tokens"
    for lengths, true in ((64, 3), False), ((65, 3), True), ((2, 0), False), ((0, 2), False):
        problem = cases[0].replace(B=1, T=sum(lengths), lengths=lengths)
        assert operator_of(problem).traits(problem)[trait] is true


GRADIENTS: Final = {"o": "dq", "final_state": "dv"}
"""Those that stand for outputs."""
ALL: Final[dict[str, tuple[Fails, str]]] = {
    "everywhere": (lambda _: True, "fails everywhere"),
    "shared heads": (lambda p: p.HV > p.H, "fails only where HV > H"),
}


@pytest.mark.parametrize("name", ALL)
def test_gradients_that_fail_are_compared_with_gradients(cases: list[Problem], name: str) -> None:
    """That they are gradients is in their names: it separated them from every right output."""
    fails, said = ALL[name]
    outputs = verdicts(cases, lambda _: False)
    gradients = [
        one.model_copy(update={"property": "gradients", "output": GRADIENTS[one.output]})
        for one in verdicts(cases, fails)
    ]
    (line,) = in_words(common_factors([*outputs, *gradients]))
    assert line.partition(":")[0] == said
