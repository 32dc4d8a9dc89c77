"""What a conversion of gates or heads could hide is found, and a right kernel of them passes."""

from __future__ import annotations

from collections.abc import Collection
from itertools import chain
from typing import Final

import pytest

from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls import questions
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.planted.catalogue import PLANTED

BROKEN: Final = {
    "HEAD1": {"cotangent-sliced", "cotangent-swapped"},
    "HEAD2": {
        "view-sliced",
        "view-swapped",
        "view-joined",
        "view-expanded",
        "view-sliced-backward",
        "view-swapped-backward",
    },
    "GRAD1": {"frozen-inputs"},
    "GRAD2": {"no-grad-one-token"},
}
RULES: Final = {*chain(*BROKEN.values()), "no-grad", "view-expanded", "view-wide"}


def statuses(adapter: Adapter, rules: Collection[str]) -> dict[str, set[Status]]:
    return {
        one.rule.name: {
            outcome.status for outcome in check("calls", adapter, one.problem, one.detail)
        }
        for one in questions(adapter, "smoke")
        if one.rule.name in rules
    }


@pytest.mark.parametrize("fault", BROKEN)
def test_it_is_found_by_the_rules_about_it_alone(fault: str) -> None:
    found = statuses(PLANTED[fault].adapter(), RULES)
    rejecting = {rule for rule, said in found.items() if any(one.rejects for one in said)}
    assert rejecting == BROKEN[fault]


def test_a_right_kernel_passes_and_is_skipped_nowhere() -> None:
    found = statuses(PLANTED["HEAD1"].right(), RULES)
    assert found == {rule: {Status.PASS} for rule in RULES}
