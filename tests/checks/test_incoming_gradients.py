"""A backward that edits its incoming gradient is refused: other readers of the output have it."""

# pyright: basic
# Functions of autograd have no types.
from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.gated_norm import act, adapted, root
from tests.checks.ruled import statuses


class Product(torch.autograd.Function):
    """n times an exact factor; the backward multiplies what comes in, or a copy of it."""

    @staticmethod
    def forward(ctx: Any, n: Tensor, factor: Tensor, edits: bool) -> Tensor:
        ctx.save_for_backward(n, factor)
        ctx.edits = edits
        return n * factor

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, None]:
        n, factor = ctx.saved_tensors
        dfactor = dy * n
        return (dy if ctx.edits else dy.clone()).mul_(factor), dfactor, None


def norm(x: Tensor, z: Tensor, w: Tensor, eps: float, name: str, *, edits: bool) -> Tensor:
    return Product.apply(x * root(x, eps), w * act(z, name), edits)


@pytest.mark.parametrize("edits", [False, True])
def test_an_edit_is_refused_and_a_copy_is_not(edits: bool) -> None:
    adapter = adapted(partial(norm, edits=edits), "port", ("fp32",))
    found = check("gradients", adapter, adapter.operator.probe("fp32"), {"of": "y"})
    wanted = {Status.MUTATED_INPUT} if edits else {Status.PASS}
    assert {outcome.status for outcome in found} == wanted
    assert all(outcome.message.startswith("dy: ") for outcome in found) is edits


def test_a_rule_that_finds_every_gradient_wrong_is_not_skipped() -> None:
    adapter = adapted(partial(norm, edits=True), "port", ("fp32",))
    found = statuses(adapter, ("edited-outputs-backward",))["edited-outputs-backward"]
    assert Status.FAIL in found
    assert Status.SKIP not in found
