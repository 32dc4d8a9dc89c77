"""What callers do: planted faults are found by these rules alone, and right kernels of every
operator pass.
"""

from __future__ import annotations

from typing import Any, Final

import pytest
import torch

from kdaverify.adapters.registry import find
from kdaverify.checks.calls.callers import REFUSAL
from kdaverify.checks.status import Status
from kdaverify.faults.planted.catalogue import PLANTED
from kdaverify.faults.planted.questions import CALLERS_RULES
from tests.checks.ruled import statuses

BROKEN: Final = {
    "CALLER1": {"edited-outputs-backward"},
    "CALLER2": {"cotangent-other"},
    "CALLER3": {"cotangent-scaled", "cotangent-uneven"},
    "CALLER4": {"view-column"},
    "CALLER5": {"view-projection"},
    "CALLER6": {"cotangent-cancelling"},
    "CALLER7": {"alternating-packing"},
    "CALLER8": {"alternating-packing"},
    "CALLER9": {"cotangent-infinite"},
    "CALLER10": {"alternating-packing"},
    "CALLER11": {"cotangent-expanded"},
    "CALLER12": {"cotangent-uneven"},
    "BETWEEN1": {"two-packs"},
    "BETWEEN2": {"two-packs"},
    "BETWEEN3": {"edited-inputs-backward"},
    "BETWEEN4": {"many-forwards-backward"},
}
OF_MANY: Final = {"after-many", "after-many-step"}
"""Their faults are in `test_after_many`."""
PACKS: Final = {"two-packs", "alternating-packing"}
STEP: Final = {"after-many-step"}
OF_DELTA_RULES: Final = {"cotangent-uneven"}
NOT: Final = STEP | OF_DELTA_RULES
RIGHT: Final = {
    "eager": {*CALLERS_RULES},
    "eager-attention": {*CALLERS_RULES} - NOT,
    "eager-mla-decode": {"view-column", "after-many"},
    "eager-sparse-attention": {*CALLERS_RULES} - PACKS - NOT,
    "torch-sdpa-math": {*CALLERS_RULES} - {"view-column", *PACKS} - NOT,
    "torch-short-conv": {*CALLERS_RULES} - {"view-projection", *PACKS} - OF_DELTA_RULES,
    "torch-gated-norm": {*CALLERS_RULES} - PACKS - NOT,
}
"""Kernels, and the rules that say something about them."""


@pytest.mark.parametrize("fault", BROKEN)
def test_it_is_found_by_the_rules_about_it_alone(fault: str) -> None:
    found = statuses(PLANTED[fault].adapter(), CALLERS_RULES)
    rejecting = {rule for rule, said in found.items() if any(one.rejects for one in said)}
    assert rejecting == BROKEN[fault]


def test_every_rule_has_a_fault() -> None:
    assert set().union(*BROKEN.values()) | OF_MANY == {*CALLERS_RULES}


@pytest.mark.parametrize("name", RIGHT)
def test_right_kernels_of_every_operator_pass(name: str) -> None:
    found = statuses(find(name), CALLERS_RULES)
    assert {rule for rule, said in found.items() if Status.PASS in said} == RIGHT[name]
    assert {one for said in found.values() for one in said} <= {Status.PASS, Status.SKIP}


class Viewed(torch.autograd.Function):
    """A function whose output is a view."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone().view(2, 2)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0].view(4)


@pytest.mark.parametrize("function", [Viewed.apply, torch.exp])
def test_refusals_of_autograd_are_recognised(function: Any) -> None:
    y = function(torch.ones(4, requires_grad=True))
    with torch.no_grad():
        y.view(-1).zero_()
    with pytest.raises(RuntimeError) as refusal:
        y.view(-1).sum().backward()
    assert REFUSAL.search(str(refusal.value))
