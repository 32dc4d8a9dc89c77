"""Calls that differ from many before them: a launch that is captured with its scalars or offsets is
rejected, one that is kept by them passes.
"""

from __future__ import annotations

from typing import Final

import pytest

from kdaverify.adapters.registry import find
from kdaverify.checks.calls.after_many import RULES
from kdaverify.checks.status import Status
from kdaverify.faults.planted.broken_calls import decoding, port
from kdaverify.faults.planted.captured import captured
from kdaverify.faults.planted.catalogue import PLANTED
from tests.checks.ruled import statuses

NAMES: Final = [rule.name for rule in RULES]
NEAR: Final = (
    *("alternating-scale", "alternating-scale-step", "alternating-packing", "repeated"),
    *("repeated-step", "kept-long"),
)
BROKEN: Final = {
    "MANY1": {*NAMES},
    "MANY2": {"after-many"},
    "MANY3": {"after-many-step"},
}
"""Without a decode entry point the main one decodes."""


@pytest.mark.parametrize("fault", BROKEN)
def test_it_is_found_by_the_rule_about_it_alone(fault: str) -> None:
    found = statuses(PLANTED[fault].adapter(), (*NEAR, *NAMES))
    rejecting = {rule for rule, said in found.items() if any(one.rejects for one in said)}
    assert rejecting == BROKEN[fault]


def test_every_rule_has_a_fault() -> None:
    assert {rule for rules in BROKEN.values() for rule in rules} == {*NAMES}


def test_launches_that_are_kept_by_what_they_hold_pass() -> None:
    patch = captured("scale", "cu_seqlens", keyed=True)
    for adapter in (port(patch), decoding(captured("scale", keyed=True))):
        assert statuses(adapter, NAMES) == {rule: {Status.PASS} for rule in NAMES}


@pytest.mark.parametrize("name", ["eager", "eager-recurrent"])
def test_a_right_kernel_passes_and_is_skipped_nowhere(name: str) -> None:
    assert statuses(find(name), NAMES) == {rule: {Status.PASS} for rule in NAMES}


@pytest.mark.parametrize(
    "name",
    [
        *("torch-short-conv", "torch-gated-norm", "torch-sdpa-math", "eager-attention"),
        *("eager-mla-decode", "eager-sparse-attention", "eager-merge"),
    ],
)
def test_right_kernels_of_other_operators_pass(name: str) -> None:
    assert {*statuses(find(name), NAMES)["after-many"]} == {Status.PASS}
