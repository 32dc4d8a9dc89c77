"""The rules of calls hold a kernel of any operator: what is about no sequence is tested, and each
planted fault is found by its rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls import RULES, questions
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.operators.pipeline_kernel import PipelineKernel
from tests.operators.toy import TOY, ToyCall
from tests.operators.toy import kernel as right

Forward = Callable[[ToyCall], dict[str, Tensor]]


class Patched(PipelineKernel):
    """The right kernel, its forward run by a patch that keeps a dict between calls."""

    def __init__(
        self, patch: Callable[[ToyCall, Forward, dict[Any, Any]], dict[str, Tensor]]
    ) -> None:
        super().__init__(TOY, "toy", ("fp32", "bf16"))
        self._patch, self._kept = patch, dict[Any, Any]()

    def forward(self, inputs: ToyCall) -> dict[str, Tensor]:
        return self._patch(inputs, super().forward, self._kept)


def one_buffer(x: ToyCall, call: Forward, kept: dict[Any, Any]) -> dict[str, Tensor]:
    """Returns the same memory from every call of a shape."""
    y = call(x)["y"]
    return {"y": kept.setdefault((y.shape, y.dtype), torch.empty_like(y)).copy_(y)}


def past_the_end(x: ToyCall, call: Forward, kept: dict[Any, Any]) -> dict[str, Tensor]:
    """Reads one element behind a, and multiplies it by 0."""
    del kept
    end = x.a.storage_offset() + x.a.numel()
    behind = (
        x.a.as_strided((1,), (1,), end)
        if x.a.untyped_storage().nbytes() > end * x.a.itemsize
        else x.a.new_zeros(1)
    )
    return {"y": call(x)["y"] + 0 * behind}


def stale(x: ToyCall, call: Forward, kept: dict[Any, Any]) -> dict[str, Tensor]:
    """Keeps the result of a tensor by its address and version."""
    key = (x.a.data_ptr(), x.a._version)  # as caches do
    return {"y": kept.setdefault(key, (call(x)["y"], x))[0].clone()}


FAULTS: Final[Mapping[str, tuple[Any, set[str]]]] = {
    "one buffer": (one_buffer, {"kept"}),
    "past the end": (past_the_end, {"view-guarded"}),
    "stale": (stale, {"edited-values"}),
}


def outcomes(adapter: Adapter, profile: str = "smoke") -> Mapping[str, list[Outcome]]:
    found = dict[str, list[Outcome]]()
    for tested in questions(adapter, profile):
        found.setdefault(tested.rule.name, []).extend(
            check("calls", adapter, tested.problem, tested.detail)
        )
    return found


def test_every_rule_that_is_about_no_sequence_is_tested() -> None:
    wanted = {
        rule.name
        for rule in RULES.values()
        if not (rule.sequences or rule.is_real or rule.scaled or rule.keys or rule.size == "equal")
        if not (rule.sources or rule.copies or rule.far or rule.delta)
        if not (rule.combined or rule.summed or rule.in_turn or rule.fed_back)
    }
    assert {*outcomes(right, "acceptance")} == wanted and len(wanted) >= 20


def test_a_right_kernel_keeps_them() -> None:
    found = outcomes(right, "acceptance")
    skipped = {
        name
        for name, reported in found.items()
        if {outcome.status for outcome in reported} == {Status.SKIP}
    }
    # one row has no other beside it, and is skipped by rules about several
    assert {
        outcome.status
        for name in found.keys() - skipped
        for outcome in found[name]
        if outcome.status is not Status.SKIP
    } == {Status.PASS}
    # No process of its own, no tuner, no options, no function as it stands, no GPU; its inputs
    # are matrices, few enough that `frozen-inputs` has every set of them; no heads, channels or
    # rows of values.
    assert skipped == {
        "copies-heads",
        "copies-heads-backward",
        "head-counts",
        "head-counts-long",
        "head-counts-long-backward",
        "head-counts-backward",
        "first-after-start",
        "tuned",
        "alternating-option",
        "unknown-keyword",
        "other-stream",
        "frozen-subsets",
        "view-joined",
        "view-joined-backward",
        "nan-shows",
        "cotangent-infinite",
    }


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_call_is_found_by_its_rules(fault: str) -> None:
    patch, rules = FAULTS[fault]
    rejected = {
        name
        for name, reported in outcomes(Patched(patch)).items()
        if any(outcome.status.rejects for outcome in reported)
    }
    assert rules <= rejected, rejected


@pytest.mark.parametrize("fault", FAULTS)
def test_it_passes_a_plain_comparison(fault: str) -> None:
    patch, _ = FAULTS[fault]
    for _, problem in right.operator.panel(right, "smoke"):
        assert {outcome.status for outcome in check("forward", Patched(patch), problem, {})} == {
            Status.PASS
        }
