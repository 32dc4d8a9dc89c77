"""Every rule of calls finds the kernel that breaks it, and passes the right one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kdaverify.adapters.eager import EAGER
from kdaverify.checks.calls import RULES, CallRuleTest, questions, shortened
from kdaverify.checks.calls.rules import OF_LONG_CALLS, of_long_calls
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.planted.broken_calls import RIGHT, port, wrong_at_times
from kdaverify.faults.planted.rulebreakers import BROKEN

# Tested elsewhere: with a kernel in a process of its own, on a GPU, with kernels that take segment
# ids, that normalise rows, with short convolutions, and with kernels of attention.
ELSEWHERE = {
    *("first-after-start", "other-stream", "renumbered", "padding-by-ids"),
    *("many-copies", "many-copies-backward", "long-rows", "sequences-apart", "late-keys"),
    *(
        "gate-parameters-backward",
        "combined-sizes",
        "combined-sizes-backward",
        "nan-shows",
        "long-sums-backward",
    ),
    *(name for name, rule in RULES.items() if rule.keys),
}

LONG = [of_long_calls(RULES[rule]).name for rule in OF_LONG_CALLS]
"""Their exact gradients take 20 s each, where none are kept."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def question(rule: str, adapter: Any) -> CallRuleTest:
    found = [
        tested
        for tested in questions(adapter, "acceptance")
        if tested.rule.name == rule and tested.problem.dtype == "fp32"
    ]
    return found[0]


def outcomes_of(rule: str, adapter: Any) -> list[Outcome]:
    one = question(rule, adapter)
    return check("calls", adapter, one.problem, one.detail)


def test_every_rule_has_a_kernel_that_breaks_it() -> None:
    assert {*RULES} - ELSEWHERE == {*BROKEN}


def is_rejected(rule: str) -> bool:
    return any(outcome.status.rejects for outcome in outcomes_of(rule, BROKEN[rule]()))


@pytest.mark.parametrize("rule", [rule for rule in BROKEN if rule not in LONG])
def test_a_broken_rule_is_found(rule: str) -> None:
    assert is_rejected(rule)


@pytest.mark.rotates
@pytest.mark.parametrize("rule", LONG)
def test_a_broken_rule_is_found_in_long_calls(rule: str) -> None:
    assert is_rejected(rule)


@pytest.mark.rotates
@pytest.mark.parametrize("rule", BROKEN)
def test_a_right_kernel_keeps_every_rule(rule: str) -> None:
    reported = {(outcome.status, outcome.message) for outcome in outcomes_of(rule, RIGHT)}
    assert {status for status, _ in reported} == {
        Status.SKIP if rule in ("tuned", "alternating-option") else Status.PASS
    }, reported


@pytest.mark.rotates
@pytest.mark.parametrize(
    "rule", [rule for rule in BROKEN if RULES[rule].backward and RULES[rule].size != "real"]
)
def test_the_embedded_backward_keeps_every_rule(rule: str) -> None:
    assert {outcome.status for outcome in outcomes_of(rule, EAGER)} == {Status.PASS}


def test_a_kernel_that_declares_other_bits_is_judged_call_by_call() -> None:
    assert {
        outcome.status
        for outcome in outcomes_of("repeated", port(wrong_at_times, deterministic=False))
    } == {Status.PASS}


def test_smoke_tests_costly_rules_in_one_format_and_the_others_in_all() -> None:
    found = {
        rule: [one.problem.dtype for one in questions(EAGER, "smoke") if one.rule.name == rule]
        for rule in RULES
    }
    assert found["kept"] == list(EAGER.dtypes)
    assert len(found["view-sliced"]) == 1
    assert found["tuned"] == []


def test_an_interpreter_is_tested_less_often() -> None:
    assert shortened({"rule": "repeated", "times": 20}) == {"rule": "repeated", "times": 5}
    assert shortened({"rule": "kept"}) == {"rule": "kept"}


def test_an_unknown_rule_is_the_caller_s_mistake() -> None:
    with pytest.raises(ValueError, match="no rule 'nothing'"):
        check("calls", RIGHT, question("kept", RIGHT).problem, {"rule": "nothing"})


def test_a_rule_about_the_size_of_a_launch_is_tested_with_one_seed() -> None:
    found = [
        tested.problem.seed
        for tested in questions(EAGER, "acceptance")
        if tested.rule.name == "crowd" and tested.problem.dtype == "bf16"
    ]
    assert found == [0]


def test_a_rule_without_a_problem_of_its_size_is_not_tested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_problem(*_: Any, **__: Any) -> None:
        return None

    monkeypatch.setattr(type(EAGER.operator), "call_problem", no_problem)
    assert [*questions(EAGER, "acceptance")] == []
