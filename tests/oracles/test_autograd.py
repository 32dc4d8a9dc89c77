"""Torch's backward of what torch can differentiate."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles.autograd import differentiate, gradients_of
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from oracles.recurrence import recurrence


def test_a_graph_is_found_where_the_caller_keeps_none(
    call: Callable[..., Inputs], cotangents: Callable[..., Cotangents]
) -> None:
    inputs = call(T=5, gate="slow")
    weights = cotangents(inputs)
    wanted = differentiate(recurrence, inputs, weights).named()
    with torch.inference_mode():
        found = differentiate(recurrence, inputs, weights).named()
    assert float(wanted["dg"].abs().max()) > 0
    for name, gradient in wanted.items():
        assert torch.equal(found[name], gradient), name


class Watched(torch.autograd.Function):
    """A product and a sum; keeps the incoming gradients that its backward gets."""

    received: tuple[Tensor | None, ...] = ()

    @staticmethod
    def forward(ctx: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, y)
        ctx.set_materialize_grads(False)
        return x * y, x + y

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor | None) -> Any:
        Watched.received = grad_outputs
        x, y = ctx.saved_tensors
        of_product, of_sum = (0 if dy is None else dy for dy in grad_outputs)
        return of_product * y + of_sum, of_product * x + of_sum


def watched() -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs and leaves of one call."""
    leaves = {name: torch.arange(12.0).reshape(3, 4).sin_().requires_grad_() for name in ("x", "y")}
    return dict(zip(("product", "sum"), Watched.apply(*leaves.values()), strict=True)), leaves


@pytest.mark.parametrize(
    "dy",
    [torch.ones(()).expand(3, 4), torch.randn(3, 8)[:, ::2], torch.randn(4, 3).T],
    ids=["expanded", "sliced", "transposed"],
)
def test_a_backward_gets_incoming_gradients_as_they_lie_in_memory(dy: Tensor) -> None:
    outputs, leaves = watched()
    found = gradients_of(outputs, leaves, {"product": dy})
    product, absent = Watched.received
    assert product is not None and absent is None
    assert (product.data_ptr(), product.stride()) == (dy.data_ptr(), dy.stride())
    outputs, leaves = watched()
    wanted = torch.autograd.grad(outputs["product"], [*leaves.values()], dy)
    assert all(map(torch.equal, found.values(), wanted))


def test_an_incoming_gradient_of_another_shape_is_refused_where_it_could_be_summed() -> None:
    outputs, leaves = watched()
    with pytest.raises(RuntimeError, match=r"Mismatch in shape: .* \[3, 4\] .* \[2, 3, 4\]"):
        gradients_of(outputs, leaves, {"sum": torch.ones(2, 3, 4)})


TAKEN = """
from oracles.autograd import derivatives
x = torch.ones(3, requires_grad=True)
derivatives(lambda: {"y": 2 * x}, {"x": x}, {"y": torch.ones(3)})
"""
OF_ACTIVATIONS = """
from kdaverify.operators.pointwise.call import ActivationArguments, torch_activations
logits = {"logits": torch.ones(1, 1, 3)}
x = ActivationArguments(logits, setting=1.0, cotangent=torch.ones(1, 1, 3))
torch_activations()["beta_sigmoid"].backward(x)
"""


@pytest.mark.parametrize("taken", [TAKEN, OF_ACTIVATIONS], ids=["call", "activations"])
def test_gradients_are_taken_without_sympy(taken: str) -> None:
    program = f"import sys, torch\n{taken}\nsys.exit('sympy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
