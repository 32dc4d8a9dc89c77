"""Rules of calls hold for a kernel in a worker process as for one in ours, those about its own
memory and objects among them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.isolation import Isolated
from kdaverify.checks.calls import RULES, questions
from kdaverify.checks.calls.rule import REAL
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.planted.rulebreakers import BROKEN, Several
from kdaverify.limits import Limits
from oracles.inputs import Inputs

SEVERAL = Several()
INSIDE = [
    rule
    for rule in BROKEN
    if RULES[rule].needs_its_process and rule != "view-wide" and RULES[rule].size not in REAL
]
"""Rules that need more than copies of tensors there and back: tried in the worker process."""
OUTSIDE = ("repeated", "padding", "first-after-start")


@pytest.fixture(scope="module")
def several() -> Iterator[Isolated]:
    isolated = Isolated(SEVERAL, f"{__name__}:SEVERAL", limits=Limits())
    yield isolated
    isolated.end()


def outcomes(rule: str, adapter: Adapter) -> list[Outcome]:
    one = next(
        one
        for one in questions(adapter, "acceptance")
        if one.rule.name == rule and one.problem.dtype == "fp32"
    )
    return check("calls", adapter, one.problem, one.detail)


def test_most_rules_need_the_kernel_s_own_process() -> None:
    assert {"kept", "edited-values", "view-sliced", "unknown-keyword", "unwritten-backward"} <= {
        *INSIDE
    }


@pytest.mark.parametrize("rule", [*INSIDE, *OUTSIDE])
def test_a_broken_rule_is_found_in_a_worker_process(several: Isolated, rule: str) -> None:
    found = outcomes(rule, several.variants()[rule])
    assert any(outcome.status.rejects for outcome in found), found


@pytest.mark.parametrize("rule", [*INSIDE, *OUTSIDE])
def test_a_right_kernel_keeps_every_rule_there(several: Isolated, rule: str) -> None:
    found = outcomes(rule, several.variants()["right"])
    assert {outcome.status for outcome in found} == {Status.PASS}, found


def test_addresses_far_apart_are_refused_by_a_process_with_a_limit(several: Isolated) -> None:
    (found,) = outcomes("view-wide", several.variants()["right"])
    assert found.status is Status.SKIP and "may not reserve the addresses" in found.message


def test_a_process_that_dies_in_a_rule_is_a_crash_of_the_kernel(
    isolated: Callable[[str], Isolated],
) -> None:
    found = outcomes("kept", isolated("DYING"))
    assert {outcome.status for outcome in found} == {Status.CRASH}, found


class _Dying(Several):
    """Ends its process in the second call."""

    calls = 0

    def forward(self, inputs: Inputs) -> Output:
        self.calls += 1
        if self.calls > 1:
            os.abort()
        return super().forward(inputs)


DYING = _Dying()
