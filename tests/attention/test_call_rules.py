"""Faults of attention that rules of calls find; without them the kernel keeps the rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls import questions
from kdaverify.checks.calls.rules import RULES
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.attention.adapter import ATTENTION, OPTIONS
from kdaverify.faults.catalogue import FAULTS, faulty
from kdaverify.faults.hosts import host_of
from kdaverify.operator import call_operator

FOUND_BY = {
    "attention-M8": "view-expanded",
    "attention-G14": "view-joined-backward",
    "attention-W1": "alternating-packing",
    "PORT-scale": "alternating-scale",
    "PORT-saved": "two-forwards",
    "PORT-buffer": "kept",
    "KEEP-schedule": "alternating-keys",
    "KEEP-lengths": "edited-keys",
    "KEEP-hash": "alternating-keys",
    "KEEP-keys": "alternating-keys",
    "KEEP-rows": "alternating-keys",
    "KEEP-mask": "alternating-keys",
    "KEEP-dk": "alternating-keys-backward",
    "KEEP-merge": "alternating-keys",
    "KEEP-output": "fed-back",
    "KEEP-splits": "alternating-splits",
    "KEEP-plan": "alternating-splits",
    "KEEP-lists": "alternating-keys",
    "KEEP-rows-on": "grown-keys",
    "lists-26": "many-copies-backward",
    "EMPTY-dkv": "unwritten-backward",
    "EMPTY-dkv-causal": "unwritten-backward",
    "EMPTY-rows": "unwritten",
    "EMPTY-rows-causal": "unwritten",
    "VIEW-lse": "view-exchanged",
    "VIEW-state": "view-exchanged",
    "VIEW-table": "view-exchanged",
    "VIEW-queries": "view-exchanged",
    "VIEW-lists": "view-exchanged",
    "VIEW-slots": "view-exchanged",
    "VIEW-keys": "view-exchanged",
    "VIEW-dq": "view-exchanged-backward",
    "VIEW-dk": "view-exchanged-backward",
    "VIEW-do": "cotangent-exchanged",
    "VIEW-dlse": "cotangent-exchanged",
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


@pytest.mark.rotates
@pytest.mark.parametrize("name", FOUND_BY)
def test_a_rule_finds_the_fault_and_passes_its_twin(name: str) -> None:
    rule = FOUND_BY[name]
    assert any(outcome.status.rejects for outcome in tested(faulty(name), rule))
    right = tested(host_of(FAULTS[name]).right(FAULTS[name]), rule)
    assert {outcome.status for outcome in right} == {Status.PASS}


@pytest.mark.parametrize("name", [name for name in FOUND_BY if name.startswith("KEEP-")])
def test_every_format_finds_what_calls_of_one_shape_keep(name: str) -> None:
    """Smoke has the rule in one format; what a kernel keeps may be of that."""
    rule, fault = FOUND_BY[name], FAULTS[name]
    for dtype in fault.dtypes:
        wrong = faulty(name)
        problem = wrong.operator.call_problem(wrong, RULES[rule], dtype, seed=1, turn=0)
        found = check("calls", wrong, problem, {"rule": rule})
        assert any(outcome.status.rejects for outcome in found)


@pytest.mark.rotates
@pytest.mark.parametrize("name", [name for name in FOUND_BY if name.startswith("VIEW-")])
def test_no_other_view_shows_an_order_of_axes(name: str) -> None:
    others = [rule for rule in RULES if rule.startswith(("view-", "cotangent-"))]
    others = [rule for rule in others if "exchanged" not in rule]
    assert not any(outcome.status.rejects for outcome in tested(faulty(name), *others))


@pytest.mark.parametrize("op", OPTIONS)
def test_other_keys_are_of_tensors_of_the_same_shapes(op: str) -> None:
    operator: Any = call_operator(op)
    problem = operator.sized(RULES["alternating-keys"], "fp32", seed=1)
    shapes = {name: x.shape for name, x in problem.inputs().tensors().items()}
    others = operator.other_keys(problem)
    assert others
    for what, fields in others.items():
        other = problem.replace(**fields).inputs().tensors()
        # a pool has the pages that its requests hold, and those of one hash hold fewer
        pools = {"cache"} if what == "lengths of one hash" else set[str]()
        found = {name: x.shape for name, x in other.items() if name not in pools}
        assert found == {name: shape for name, shape in shapes.items() if name not in pools}


def test_boundaries_of_a_call_before_both_are_found() -> None:
    assert any(outcome.status.rejects for outcome in tested(faulty("attention-W1"), *OFFSETS))


def test_two_lists_of_offsets_are_edited() -> None:
    found = tested(ATTENTION, *OFFSETS)
    assert found and {outcome.status for outcome in found} == {Status.PASS}
