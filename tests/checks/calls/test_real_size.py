"""Races that only a real size or many calls show are detected,
and the verdict states which rate the calls exclude.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.checks.calls import CallRuleTest, questions
from kdaverify.checks.calls.questions import times
from kdaverify.checks.calls.repeated import detectable_share, excluded
from kdaverify.checks.calls.rules import OF_LONG_CALLS, RULES, of_long_calls
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.conforming import conforming
from kdaverify.faults.planted.broken_backwards import Derived
from kdaverify.faults.planted.broken_calls import RIGHT, port, right
from kdaverify.faults.planted.races import BACKWARD, FORWARD, too_rare
from kdaverify.faults.planted.rulebreakers import BROKEN
from kdaverify.operators.kda.call_problem import call_problem
from kdaverify.problems import Domain

DTYPE = "fp32"
OTHERWISE = conforming("chunk", state="vk", gate="log2", packing="cu_seqlens")
"""Right, in other conventions."""
SMALL = {"repeated-real": "repeated", "repeated-real-backward": "repeated-backward"}


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def result_of(rule: str, adapter: Adapter) -> list[Outcome]:
    one = next(
        one
        for one in implementation_of(adapter)
        if one.rule.name == rule and one.problem.dtype == DTYPE
    )
    return check("calls", adapter, one.problem, one.detail)


def implementation_of(adapter: Adapter, profile: str = "acceptance") -> list[CallRuleTest]:
    return [*questions(adapter, profile)]


def rejected(outcomes: list[Outcome]) -> bool:
    return any(outcome.status.rejects for outcome in outcomes)


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("rule", "race"),
    [
        *(("repeated-real", race) for race in FORWARD),
        *(("repeated-real-backward", race) for race in BACKWARD),
    ],
)
def test_a_race_of_real_sizes_is_detected_there_alone(rule: str, race: str) -> None:
    planted: Callable[[], Adapter] = {**FORWARD, **BACKWARD}[race]
    assert not rejected(result_of(SMALL[rule], planted()))
    assert rejected(result_of(rule, planted()))


@pytest.mark.parametrize("rule", OF_LONG_CALLS)
def test_a_long_path_that_breaks_a_rule_about_memory_is_not_found_in_short_calls(rule: str) -> None:
    # That its own rule finds it is tested beside all other rules.
    assert not rejected(result_of(rule, BROKEN[of_long_calls(RULES[rule]).name]()))


@pytest.mark.rotates
@pytest.mark.parametrize("rule", OF_LONG_CALLS)
def test_right_kernels_keep_every_rule_about_memory_in_long_calls(rule: str) -> None:
    for adapter in (RIGHT, EAGER, OTHERWISE):
        assert {
            outcome.status for outcome in result_of(of_long_calls(RULES[rule]).name, adapter)
        } == {Status.PASS}, adapter.name


@pytest.mark.rotates
@pytest.mark.parametrize(
    ("rule", "adapter"),
    [("repeated-real", RIGHT), ("repeated-real", EAGER), ("repeated-real-backward", Derived())],
)
def test_a_right_kernel_passes_with_the_rate_that_its_calls_exclude(
    rule: str, adapter: Adapter
) -> None:
    found = result_of(rule, adapter)
    assert {outcome.status for outcome in found} == {Status.PASS}
    assert all(outcome.message.endswith(f"in all of 10 calls: {excluded(10)}") for outcome in found)


def test_a_race_rarer_than_the_stated_rate_may_pass() -> None:
    assert not rejected(result_of("repeated-real", too_rare()))


def test_the_rate_leaves_one_chance_in_twenty_that_no_call_differs() -> None:
    assert [(1 - detectable_share(n)) ** n for n in (1, 8, 20, 149, 1000)] == pytest.approx(
        [0.05] * 5
    )
    assert detectable_share(149) < 1 / 50 < detectable_share(148)
    assert detectable_share(59) < 1 / 20 < detectable_share(58)
    assert excluded(20) == "a race that changes 0.14 of the calls is detected with probability 95%"


def test_the_problem_is_of_a_real_size() -> None:
    problem = call_problem(RIGHT, RULES["repeated-real"], DTYPE, seed=0)
    assert problem.packed and problem.T >= 1024
    assert (problem.HV, problem.K, problem.V) == (8, 64, 64)


def test_a_kernel_of_other_widths_and_without_packs_has_its_own_problem() -> None:
    class Narrow(Derived):
        widths = (16, 128)
        domain = Domain(widths=(16, 128), packed=False, head_ratios=(1,))

    problem = call_problem(Narrow(), RULES["repeated-real"], DTYPE, seed=0)
    assert (problem.packed, problem.H, problem.HV, problem.K, problem.V) == (False, 8, 8, 128, 128)
    assert problem.T >= 1024


def test_smoke_makes_no_calls_of_a_real_size_and_an_accelerator_makes_many() -> None:
    class OnGpu(Derived):
        device = "cuda"

    assert not [one for one in implementation_of(RIGHT, "smoke") if one.rule.size == "real"]
    rule = RULES["repeated-real"]
    assert [times(rule, adapter, "acceptance") for adapter in (RIGHT, OnGpu())] == [10, 149]
    assert len([one for one in implementation_of(RIGHT) if one.rule is rule]) == len(RIGHT.dtypes)


class Interpreted(Derived):
    def environment(self) -> dict[str, str]:
        return {**super().environment(), "mode": "interpreted"}


@pytest.mark.parametrize(
    ("adapter", "reason"),
    [
        (Interpreted(), "interpreter"),
        (port(lambda x, _: right(x), deterministic=False), "deterministic=False"),
    ],
)
def test_what_cannot_be_compared_at_this_size_is_skipped_with_the_reason(
    adapter: Adapter, reason: str
) -> None:
    found = result_of("repeated-real", adapter)
    assert {outcome.status for outcome in found} == {Status.SKIP}
    assert all(reason in outcome.message for outcome in found)
