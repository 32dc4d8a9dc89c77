"""Many copies of a call in one: planted faults past a limit of a launch are found by these rules
alone, and right kernels of every operator pass.
"""

from __future__ import annotations

from typing import Final

import pytest

from kdaverify.adapters.eager import EAGER
from kdaverify.adapters.registry import find
from kdaverify.checks.calls import behind, neutral, short_packs, unlike
from kdaverify.checks.calls.copies import AFTER_MORE, IN_A_ROW, RULES, TWICE
from kdaverify.checks.status import Status
from kdaverify.faults.planted.catalogue import PLANTED
from tests.checks.ruled import statuses

NAMES: Final = [
    rule.name
    for rule in (
        *RULES,
        *TWICE,
        *IN_A_ROW,
        *AFTER_MORE,
        *behind.RULES,
        *unlike.RULES,
        *unlike.OF_STRETCHES,
        *short_packs.RULES,
        *neutral.RULES,
    )
    if rule.profile == "smoke"
]
BROKEN: Final = {
    "COPY1": {*NAMES}
    - {"copies-backward", "copies-backward-twice", "copies-in-a-row", "one-unlike", "first-neutral"}
    - {"stretch-unlike"}
    - {rule.name for rule in (*AFTER_MORE, *behind.RULES)},
    "COPY2": {"copies-packed"},
    "COPY3": {"copies-step"},
    "COPY4": {"copies-heads", "copies-heads-step", "copies-heads-backward"},
    "COPY5": {"copies-backward", "behind-long-backward"},
    "COPY6": {"copies-packed-backward"},
    "COPY7": {"copies-heads-backward"},
    "COPY8": {"copies-backward-twice"},
    "COPY9": {"copies-in-a-row"},
    "COPY11": {"copies-after-more", "copies-step", "copies-short", "first-neutral"},
    "COPY12": {"copies-after-more-backward"},
    "COPY13": {"copies-packed", "copies-short"},
    "COPY14": {"behind-long", "behind-long-backward"},
    "COPY15": {"behind-long-backward"},
    "COPY16": {"copies-short"},
    "COPY17": {"copies-in-a-row"},
    "COPY18": {"copies-short"},
    "UNLIKE1": {"one-unlike"},
    "UNLIKE2": {"one-unlike"},
    "UNLIKE3": {"one-unlike", "stretch-unlike"},
    "UNLIKE4": {"first-neutral"},
    "UNLIKE5": {"stretch-unlike"},
    "UNLIKE6": {"stretch-unlike"},
    "UNLIKE7": {"one-unlike", "stretch-unlike"},
}


@pytest.mark.rotates
@pytest.mark.parametrize("fault", BROKEN)
def test_it_is_found_by_the_rules_about_it_alone(fault: str) -> None:
    found = statuses(PLANTED[fault].adapter(), NAMES)
    assert {rule for rule, said in found.items() if any(one.rejects for one in said)} == BROKEN[
        fault
    ]


def test_a_right_kernel_passes_and_is_skipped_nowhere() -> None:
    assert statuses(EAGER, NAMES) == {rule: {Status.PASS} for rule in NAMES}


@pytest.mark.parametrize("name", ["torch-short-conv", "torch-gated-norm"])
def test_right_kernels_of_other_operators_pass(name: str) -> None:
    found = statuses(find(name), NAMES)
    assert {"copies", "copies-backward"} <= {*found}
    assert not any(one.rejects for said in found.values() for one in said)
    assert found["copies"] == {Status.PASS}
