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
OUTSIDE = ("repeated", "padding", "first-after-start", "copies-short")


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


@pytest.mark.rotates
@pytest.mark.parametrize("rule", [*INSIDE, *OUTSIDE])
def test_a_broken_rule_is_found_in_a_worker_process(several: Isolated, rule: str) -> None:
    found = outcomes(rule, several.variants()[rule])
    assert any(outcome.status.rejects for outcome in found), found


@pytest.mark.rotates
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


def test_a_device_that_a_rule_lost_is_not_the_next_rule_s(
    isolated: Callable[[str], Isolated],
) -> None:
    kernel = isolated("LOSING")
    lost = outcomes("view-sliced", kernel)
    assert [one.status for one in lost] == [Status.CRASH]
    assert "illegal instruction" in lost[0].message
    assert {one.status for one in outcomes("kept", kernel)} == {Status.PASS}


class _Losing(Several):
    """Its device fails in the first call on tensors that are not contiguous."""

    lost = False

    def forward(self, inputs: Inputs) -> Output:
        self.lost = self.lost or not inputs.v.is_contiguous()
        if self.lost:
            raise RuntimeError("CUDA error: an illegal instruction was encountered")
        return super().forward(inputs)


LOSING = _Losing()
