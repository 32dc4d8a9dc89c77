"""What happens between calls: planted faults are found by the rules about it alone, and right
kernels of every operator pass.
"""

from __future__ import annotations

from typing import Final

import pytest

from kdaverify.adapters.registry import find
from kdaverify.checks.calls.earlier import EVALUATED_FIRST, MICRO, RULES
from kdaverify.checks.status import Status
from kdaverify.faults.planted.broken_backwards import Derived
from kdaverify.faults.planted.broken_calls import port
from kdaverify.faults.planted.catalogue import PLANTED
from kdaverify.faults.planted.earlier import (
    gradient_that_clears_grad,
    path_of_the_first_call,
    without_chunks_between,
)
from tests.checks.ruled import statuses

NAMES: Final = [rule.name for rule in (*RULES, *EVALUATED_FIRST, *MICRO)]
NEAR: Final = ("backward-twice", "two-forwards", "no-grad", "edited-values", "alternating-packing")
BROKEN: Final = {
    "AUTO11": {"after-refused"},
    "AUTO12": {"evaluated-before"},
    "AUTO13": {"shared-forwards"},
    "AUTO14": {"masked-loss-backward"},
    "AUTO17": {"evaluated-first"},
    "AUTO18": {"micro-batches"},
}


@pytest.mark.parametrize("fault", BROKEN)
def test_it_is_found_by_the_rule_about_it_alone(fault: str) -> None:
    found = statuses(PLANTED[fault].adapter(), (*NAMES, *NEAR))
    rejecting = {rule for rule, said in found.items() if any(one.rejects for one in said)}
    assert rejecting == BROKEN[fault]


def test_a_path_without_a_graph_is_found_by_the_first_call_of_a_shape() -> None:
    found = statuses(port(path_of_the_first_call), ("evaluated-first", "no-grad", "inference-mode"))
    assert {rule: {one for one in said if one.rejects} for rule, said in found.items()} == {
        "evaluated-first": {Status.ERROR},
        "no-grad": set(),
        "inference-mode": set(),
    }


def test_a_backward_that_clears_grad_is_found_by_backward_alone() -> None:
    found = statuses(port(gradient_that_clears_grad), ("micro-batches", "backward-twice"))
    assert Status.FAIL in found["micro-batches"]
    assert found["backward-twice"] == {Status.PASS}


def test_a_backward_that_passes_over_chunks_without_a_loss_is_found_by_one_with_a_gap() -> None:
    found = statuses(Derived(without_chunks_between), (*NAMES, "late-backward"))
    rejecting = {rule for rule, said in found.items() if any(one.rejects for one in said)}
    assert rejecting == {"masked-loss-backward"}


def test_every_rule_has_a_fault() -> None:
    assert {rule for rules in BROKEN.values() for rule in rules} == {*NAMES}


@pytest.mark.parametrize("name", ["eager", "eager-recurrent"])
def test_a_right_kernel_passes_and_is_skipped_nowhere(name: str) -> None:
    found = statuses(find(name), (*NAMES, *NEAR))
    assert {rule: found[rule] for rule in NAMES} == {rule: {Status.PASS} for rule in NAMES}


@pytest.mark.parametrize("name", ["torch-short-conv", "torch-gated-norm"])
def test_right_kernels_of_other_operators_pass(name: str) -> None:
    assert {one for said in statuses(find(name), (*NAMES, *NEAR)).values() for one in said} <= {
        Status.PASS,
        Status.SKIP,
    }
