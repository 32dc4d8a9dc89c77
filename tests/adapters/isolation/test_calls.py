"""Rules of calls reach a kernel in a worker process, or say that they do not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kdaverify.adapters.isolation import Isolated
from kdaverify.checks.calls import questions
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from tests.checks.calls.kernels import Several

SEVERAL = Several()
REACHED = ("repeated", "view-sliced", "view-misaligned", "cotangent-swapped", "padding", "unwritten")
NOT_REACHED = ("view-wide", "unknown-keyword")
HIDDEN = ("kept", "edited-values")
"""Of memory behind a barrier: no case is generated, and the decision lists them as not tested."""
BROKEN = {
    "reads dense": "view-swapped",
    "unwritten": "unwritten",
    "writes behind": "view-guarded",
    "wrong at first": "first-after-start",
}


def asked(rule: str, adapter: Any) -> set[Status]:
    one = next(one for one in questions(adapter, "acceptance") if one.rule.name == rule)
    return {outcome.status for outcome in check("calls", adapter, one.problem, one.detail)}


@pytest.fixture
def several(isolated: Callable[[str], Isolated]) -> Isolated:
    return isolated("SEVERAL")


def test_a_rule_finds_there_what_it_finds_here_or_says_that_it_cannot(several: Isolated) -> None:
    assert [asked(rule, several) for rule in REACHED] == [{Status.PASS}] * len(REACHED)
    assert [asked(rule, several) for rule in NOT_REACHED] == [{Status.SKIP}] * len(NOT_REACHED)
    assert not {one.rule.name for one in questions(several, "acceptance")} & {*HIDDEN}
    for name, rule in BROKEN.items():
        assert asked(rule, several.variants()[name]) & {Status.FAIL, Status.NONFINITE, Status.MUTATED_INPUT}, name
