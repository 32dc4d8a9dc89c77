"""Planted faults of late tokens, exchanged axes, fused padding and frozen sets: the rules about one
find it, no other does, and a right kernel of the same conventions passes.
"""

from __future__ import annotations

from typing import Final

import pytest

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER, Eager
from kdaverify.checks.calls import questions
from kdaverify.checks.status import Status
from kdaverify.faults.planted.catalogue import PLANTED
from tests.checks.ruled import statuses

BROKEN: Final = {
    "FUSE1": {"padding-backward"},
    "FUSE2": {"padding-backward"},
    "FUSE3": {"padding-backward"},
    "AXES1": {"view-exchanged", "view-exchanged-backward", "view-exchanged-step"},
    "AXES2": {"cotangent-exchanged"},
    "AXES3": {"view-exchanged-step"},
    "AXES4": {"view-exchanged", "view-exchanged-backward"},
    "LATE1": {"late", "late-backward"},
    "LATE2": {"late", "late-backward"},
    "LATE3": {"late", "late-backward"},
    "LATE4": {"late-backward"},
    "AUTO9": {"frozen-subsets"},
    "AUTO10": {"no-grad-chunks"},
}
RULES: Final = (
    "padding",
    "padding-backward",
    "view-exchanged",
    "view-exchanged-backward",
    "cotangent-exchanged",
    "view-exchanged-step",
    "cotangent-swapped",
    "view-swapped",
    "frozen-inputs",
    "frozen-subsets",
    "no-grad",
    "no-grad-chunks",
    "late",
    "late-backward",
)
HEAD_GATES: Final = Eager("head-gates", {"bf16": "gdn64", "fp32": "chunk64-fp32"}, "head")
NO_GATES: Final = Eager("no-gates", {"bf16": "chunk64-bf16", "fp32": "chunk64-fp32"}, "none")


@pytest.mark.rotates
@pytest.mark.parametrize("fault", BROKEN)
def test_it_is_found_by_the_rules_about_it_alone(fault: str) -> None:
    found = statuses(PLANTED[fault].adapter(), RULES)
    assert {rule for rule, said in found.items() if any(one.rejects for one in said)} == BROKEN[
        fault
    ]


@pytest.mark.parametrize(
    "adapter",
    [PLANTED["FUSE1"].right(), EAGER, HEAD_GATES, NO_GATES],
    ids=("fused", "eager", "head-gates", "no-gates"),
)
def test_a_right_kernel_passes_and_is_skipped_nowhere(adapter: Adapter) -> None:
    assert statuses(adapter, RULES) == {rule: {Status.PASS} for rule in RULES}


def test_a_state_is_held_in_every_format() -> None:
    found = [one for one in questions(EAGER, "smoke") if one.rule.name == "no-grad-chunks"]
    assert [one.problem.dtype for one in found] == [*EAGER.dtypes]
