"""States and tensors from elsewhere: planted faults are found by these rules alone, and right
kernels of every operator pass.
"""

from __future__ import annotations

from typing import Final

import pytest

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.adapters.registry import find
from kdaverify.checks.calls import questions
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.planted.catalogue import PLANTED
from kdaverify.faults.planted.questions import PLACES_RULES

BROKEN: Final = {
    "PLACE1": {"chained-calls"},
    "PLACE2": {"one-tensor"},
    "PLACE3": {"one-expanded"},
    "PLACE4": {"view-expanded-state", "view-expanded-step", "one-expanded"},
    "PLACE5": {"view-expanded-step"},
    "PLACE6": {"view-step"},
    "PLACE7": {"zero-state-backward"},
    "PLACE8": {"view-first-entry"},
}


def statuses(adapter: Adapter) -> dict[str, set[Status]]:
    return {
        one.rule.name: {
            outcome.status for outcome in check("calls", adapter, one.problem, one.detail)
        }
        for one in questions(adapter, "smoke")
        if one.rule.name in PLACES_RULES
    }


@pytest.mark.parametrize("fault", BROKEN)
def test_it_is_found_by_the_rules_about_it_alone(fault: str) -> None:
    found = statuses(PLANTED[fault].adapter())
    rejecting = {rule for rule, said in found.items() if any(one.rejects for one in said)}
    assert rejecting == BROKEN[fault]


def test_every_rule_has_a_fault() -> None:
    assert {rule for rules in BROKEN.values() for rule in rules} == {*PLACES_RULES}


@pytest.mark.parametrize("name", ["eager", "eager-recurrent"])
def test_a_right_kernel_passes_and_is_skipped_nowhere(name: str) -> None:
    assert statuses(find(name)) == {rule: {Status.PASS} for rule in PLACES_RULES}


def test_right_kernels_of_other_operators_pass() -> None:
    of_states = {*PLACES_RULES} - {"one-tensor", "one-expanded", "view-first-entry"}
    assert statuses(find("torch-short-conv")) == {rule: {Status.PASS} for rule in of_states}
    norms = statuses(find("torch-gated-norm"))
    assert norms == {
        rule: {Status.PASS} for rule in ("one-tensor", "one-expanded", "view-first-entry")
    }


def test_a_kernel_without_states_is_tested_on_none() -> None:
    assert EAGER.operator.has_sources
    assert not {"chained-calls"} & {*statuses(find("torch-gated-norm"))}
