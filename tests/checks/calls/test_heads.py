"""Rules about heads: planted faults are found by these rules alone, and right kernels of every
operator pass.
"""

from __future__ import annotations

from typing import Final

import pytest

from kdaverify.adapters.registry import find
from kdaverify.checks.calls import head_counts, heads
from kdaverify.checks.status import Status
from kdaverify.faults.planted.catalogue import PLANTED
from tests.checks.ruled import statuses

NAMES: Final = [rule.name for rule in (*heads.RULES, *head_counts.RULES) if rule.profile == "smoke"]
NEAR: Final = ("repeated", "batch-reversed", "copies-heads", "step")
BROKEN: Final = {
    "HEADS1": {"grouped-heads"},
    "HEADS2": {"reversed-heads"},
    "HEADS3": {"head-counts"},
}
RIGHT: Final = {
    "eager": {*NAMES},
    "eager-attention": {"grouped-heads", "reversed-heads"},
    "torch-sdpa-math": {"grouped-heads", "reversed-heads"},
    "torch-short-conv": {"reversed-heads", "head-counts"},
    "torch-gated-norm": {"head-counts"},
}
"""Kernels, and the rules that say something about them."""


@pytest.mark.parametrize("fault", BROKEN)
def test_it_is_found_by_the_rule_about_it_alone(fault: str) -> None:
    found = statuses(PLANTED[fault].adapter(), (*NAMES, *NEAR))
    rejecting = {rule for rule, said in found.items() if any(one.rejects for one in said)}
    assert rejecting == BROKEN[fault]


def test_every_rule_has_a_fault() -> None:
    assert {rule for rules in BROKEN.values() for rule in rules} == {*NAMES}


@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_of_every_operator_pass(name: str) -> None:
    found = statuses(find(name), NAMES)
    assert {rule for rule, said in found.items() if Status.PASS in said} == RIGHT[name]
    assert {one for said in found.values() for one in said} <= {Status.PASS, Status.SKIP}
