"""Faults of attention that rules of calls find; without them the kernel keeps the rules."""

from __future__ import annotations

import pytest
import torch

from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls import questions
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.attention.adapter import ATTENTION
from kdaverify.faults.catalogue import FAULTS, faulty
from kdaverify.faults.hosts import host_of

FOUND_BY = {
    "attention-M8": "view-expanded",
    "attention-G14": "view-joined-backward",
    "attention-W1": "alternating-packing",
    "PORT-scale": "alternating-scale",
    "PORT-saved": "two-forwards",
    "PORT-buffer": "kept",
}
OFFSETS = ("edited-offsets", "alternating-packing")


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def tested(adapter: Adapter, *rules: str) -> list[Outcome]:
    return [
        outcome
        for one in questions(adapter, "smoke")
        if one.rule.name in rules
        for outcome in check("calls", adapter, one.problem, one.detail)
    ]


@pytest.mark.parametrize("name", FOUND_BY)
def test_a_rule_finds_the_fault_and_passes_its_twin(name: str) -> None:
    rule = FOUND_BY[name]
    assert any(outcome.status.rejects for outcome in tested(faulty(name), rule))
    right = tested(host_of(FAULTS[name]).right(FAULTS[name]), rule)
    assert {outcome.status for outcome in right} == {Status.PASS}


def test_boundaries_of_a_call_before_both_are_found() -> None:
    assert any(outcome.status.rejects for outcome in tested(faulty("attention-W1"), *OFFSETS))


def test_two_lists_of_offsets_are_edited() -> None:
    found = tested(ATTENTION, *OFFSETS)
    assert found and {outcome.status for outcome in found} == {Status.PASS}
