"""Rules about memory over several widths, and in the backward: kernels that keep every rule at K = 8, V = 4."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.eager import EAGER
from kdaverify.checks.calls import RULES, questions
from kdaverify.checks.gradients import gradients
from kdaverify.checks.properties import check
from kdaverify.problems import Problem
from oracles.inputs import Inputs
from tests.checks.calls.kernels import RIGHT, Derived, Outputs, port, right

MEMORY = [rule.name for rule in RULES.values() if rule.memory]


def rejecting(adapter: Adapter, *, changes: dict[str, Any] | None = None) -> set[str]:
    """The rules about memory that reject a kernel in fp32, over all seeds of acceptance."""
    asked = [one for one in questions(adapter, "acceptance") if one.rule.memory and one.problem.dtype == "fp32"]
    return {
        one.rule.name
        for one in asked
        if any(outcome.status.rejects for outcome in check("calls", adapter, one.problem.replace(**(changes or {})), one.detail))
    }


def _read(x: Tensor, width: int) -> Tensor:
    """Rows of `width` elements read from where the rows of x begin, what lies past x's own columns times 0."""
    room = x.untyped_storage().nbytes() // x.itemsize - x.storage_offset()
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    if width == x.shape[-1] or last + width - x.shape[-1] >= room:
        return x
    rows = x.as_strided((*x.shape[:-1], width), x.stride())
    return x + 0 * rows[..., x.shape[-1] :].sum(dim=-1, keepdim=True)


def _rounded_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def pairs_of_keys(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Reads k two elements at a time."""
    return right(replace(x, k=_read(x.k, _rounded_up(x.K, 2))))


def tiles_of_values(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Reads v in tiles of 64 columns once there are more than 64."""
    return right(replace(x, v=_read(x.v, _rounded_up(x.V, 64)) if x.V > 64 else x.v))


def pairs_of_queries(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Reads q four elements at a time, masked for every width but the odd ones."""
    return right(replace(x, q=_read(x.q, _rounded_up(x.K, 4)) if x.K % 2 else x.q))


def last_column_unwritten(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Writes o two columns at a time and drops the last one of an odd width."""
    o, final = right(x)
    written = torch.empty_like(o)
    whole = x.V // 2 * 2
    written[..., :whole] = o[..., :whole]
    return written, final


@pytest.mark.parametrize("patch", [pairs_of_keys, tiles_of_values, pairs_of_queries, last_column_unwritten])
def test_tails_of_widths_are_found_at_other_widths_alone(patch: Callable[[Inputs, dict[Any, Any]], Outputs]) -> None:
    adapter = port(patch)
    assert rejecting(adapter) & {"view-guarded", "view-sliced", "view-misaligned", "unwritten"}
    assert not rejecting(adapter, changes={"K": 8, "V": 4})


@pytest.mark.parametrize("adapter", [RIGHT, EAGER, Derived()], ids=["port", "eager", "derived"])
def test_right_kernels_keep_every_rule_about_memory(adapter: Adapter) -> None:
    assert rejecting(adapter) == set()


def test_smoke_and_acceptance_test_every_class_of_width() -> None:
    for profile in ("smoke", "acceptance"):
        found = {(one.problem.K, one.problem.V) for one in questions(EAGER, profile) if one.rule.memory}
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
    assert "MUTATED_INPUT" in {str(outcome.status) for outcome in gradients(Editing(), problem, of="both")}
    assert {str(outcome.status) for outcome in gradients(EAGER, problem, of="both")} == {"PASS"}
