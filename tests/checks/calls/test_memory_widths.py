"""Rules about memory over several widths, and in the backward: kernels that keep every rule at K =
8, V = 4.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.eager import EAGER
from kdaverify.adapters.poison import poisoned_allocations
from kdaverify.checks.calls import RULES, questions
from kdaverify.checks.gradients import gradients
from kdaverify.checks.properties import check
from kdaverify.checks.status import REFUSED, Status
from kdaverify.faults.planted.broken_backwards import Derived
from kdaverify.faults.planted.broken_calls import RIGHT, port, right
from kdaverify.faults.planted.widths import FAULTS
from kdaverify.problems import Problem
from oracles.inputs import Inputs

MEMORY = [rule.name for rule in RULES.values() if rule.memory]


def rejecting(adapter: Adapter, *, changes: dict[str, Any] | None = None) -> set[str]:
    """The rules about memory that reject a kernel in fp32, over all seeds of acceptance."""
    tested = [
        one
        for one in questions(adapter, "acceptance")
        if one.rule.memory and one.problem.dtype == "fp32"
    ]
    return {
        one.rule.name
        for one in tested
        if any(
            outcome.status.rejects
            for outcome in check(
                "calls", adapter, one.problem.replace(**(changes or {})), one.detail
            )
        )
    }


@pytest.mark.rotates
@pytest.mark.parametrize("fault", FAULTS)
def test_tails_of_widths_are_found_at_other_widths_alone(fault: str) -> None:
    adapter = FAULTS[fault]()
    assert rejecting(adapter) & {"view-guarded", "view-sliced", "view-misaligned", "unwritten"}
    assert not rejecting(adapter, changes={"K": 8, "V": 4})


@pytest.mark.rotates
@pytest.mark.parametrize("adapter", [RIGHT, EAGER, Derived()], ids=["port", "eager", "derived"])
def test_right_kernels_keep_every_rule_about_memory(adapter: Adapter) -> None:
    assert rejecting(adapter) == set()


def test_smoke_and_acceptance_test_every_class_of_width() -> None:
    for profile in ("smoke", "acceptance"):
        found = {
            (one.problem.K, one.problem.V) for one in questions(EAGER, profile) if one.rule.memory
        }
        assert found == {(8, 4), (5, 3), (100, 65), (128, 128)}


class _EditsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, k: Tensor, through: Tensor) -> Tensor:
        ctx.k = k
        return through.clone()

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.k.detach().mul_(2.0)
        return None, dy[0]


class Editing(Derived):
    """A kernel of which the backward, by torch's autograd, scales the k that it was given."""

    def forward(self, inputs: Inputs) -> Output:
        output = EAGER.forward(inputs)
        return replace(output, o=_EditsInBackward.apply(inputs.k, output.o))

    gradients = Adapter.gradients


def test_a_backward_that_edits_an_input_is_found() -> None:
    problem = Problem.model_validate({
        "B": 1, "T": 5, "H": 1, "HV": 1, "K": 4, "V": 4, "dtype": "fp32", "seed": 0,
        "gate": "mild", "key": "random", "beta": "uniform", "state": "random", "value": "normal",
    })  # fmt: skip
    assert "MUTATED_INPUT" in {
        str(outcome.status) for outcome in gradients(Editing(), problem, of="both")
    }
    assert {str(outcome.status) for outcome in gradients(EAGER, problem, of="both")} == {"PASS"}


@pytest.mark.parametrize("rule", ["view-sliced", "view-swapped", "view-sliced-backward"])
@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("q, k, v, g and out must be contiguous", Status.SKIP),
        ("expected the last stride to be 1", Status.SKIP),
        ("q: the address has to be aligned to 16 bytes", Status.SKIP),
        ("index 7 is out of bounds", Status.ERROR),
    ],
)
def test_a_kernel_may_refuse_views_in_so_many_words(rule: str, said: str, status: Status) -> None:
    def refusing(x: Inputs, _: dict[Any, Any]) -> Any:
        if not x.v.is_contiguous():
            raise RuntimeError(said)
        return right(x)

    one = next(
        one
        for one in questions(EAGER, "acceptance")
        if one.rule.name == rule and one.problem.dtype == "fp32"
    )
    (found,) = check("calls", port(refusing), one.problem, one.detail)
    assert found.status is status
    assert found.message.startswith(REFUSED) == (status is Status.SKIP)
    assert said in found.message


def test_unwritten_memory_is_filled_under_autograd_and_in_checkpoints() -> None:
    x = torch.ones(3, requires_grad=True)
    with poisoned_allocations():
        leaf = torch.empty(2, requires_grad=True)
        checkpoint(torch.exp, x, use_reentrant=False).sum().backward()
    assert leaf.requires_grad and bool(leaf.isnan().all())
    assert x.grad is not None and torch.equal(x.grad, x.detach().exp())
