"""Gradcheck rejects a wrong derivative by the name of its input, passes right ones, and says where
there is nothing to differentiate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from kdaverify.adapters import find
from kdaverify.adapters.base import Output
from kdaverify.adapters.eager import Eager
from kdaverify.checks.gradcheck import ORDERS, gradcheck
from kdaverify.checks.status import Status
from kdaverify.problems import Problem
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS

DENSE = Problem(
    B=1,
    T=4,
    H=1,
    HV=2,
    K=2,
    V=3,
    dtype="fp64",
    gate="log-sigmoid",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=7,
)
PACKED = DENSE.replace(T=4, lengths=(0, 2, 1), key="coherent-0.9", gate="slow")


class Changed(Eager):
    """The embedded kernel in float64 with its gradients, or its outputs, changed."""

    def __init__(
        self,
        change: Callable[[Gradients[Any]], Gradients[Any]] = lambda found: found,
        outputs: Callable[[Output], Output] = lambda output: output,
    ) -> None:
        super().__init__("changed", {"fp64": "chunk64-fp64", "fp32": "chunk64-fp32"})
        self._change, self._outputs_changed = change, outputs

    def forward(self, inputs: Inputs) -> Output:
        return self._outputs_changed(super().forward(inputs))

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        return self._change(super().gradients(inputs, cotangents))


def rejected(adapter: Eager, problem: Problem = DENSE, **tested: Any) -> dict[str, str]:
    return {
        outcome.output: outcome.message
        for outcome in gradcheck(adapter, problem, **tested)
        if outcome.status.rejects
    }


@pytest.mark.rotates
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "problem",
    [DENSE, PACKED, DENSE.replace(state="absent", T=1, K=1, V=1)],
    ids=["dense", "packed", "smallest"],
)
@pytest.mark.parametrize("name", ["eager", "eager-recurrent"])
def test_the_embedded_kernels_pass_on_every_input(name: str, problem: Problem, order: Any) -> None:
    found = gradcheck(find(name), problem, order=order)
    assert {outcome.status for outcome in found} == {Status.PASS}
    stateless = problem.state == "absent"
    assert order == "second" or [o.output for o in found] == [
        n for n in GRADIENTS if not (stateless and n == "d_initial_state")
    ]


@pytest.mark.rotates
@pytest.mark.parametrize("name", GRADIENTS)
def test_a_derivative_off_by_one_in_a_thousand_is_rejected_by_its_name(name: str) -> None:
    wrong = Changed(lambda found: replace(found, **{name: 1.001 * getattr(found, name)}))
    reported = rejected(wrong, PACKED)
    assert set(reported) == {name}
    assert (
        f"with respect to {GRADIENTS[name]}" in reported[name]
        and "numerical" in reported[name]
        and "Traceback" not in reported[name]
    )


def test_the_chunk_end_term_of_dg_left_out_is_rejected() -> None:
    def without_the_end(found: Gradients[Any]) -> Gradients[Any]:
        dg = found.dg.clone()
        dg[:, :-1] -= dg[:, -1:]
        return replace(found, dg=dg)

    assert set(rejected(Changed(without_the_end))) == {"dg"}


class _StraightThrough(torch.autograd.Function):
    """A rounding that the backward takes for the identity, on a grid coarse enough to see."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        del ctx
        return (x * 2**16).round() / 2**16

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *dy: Tensor
    ) -> Tensor:
        del ctx
        return dy[0]


def test_a_rounding_that_the_backward_ignores_is_rejected() -> None:
    rounded: Any = _StraightThrough.apply
    assert rejected(Changed(outputs=lambda y: Output(rounded(y.o), y.final_state)))


class _Square(torch.autograd.Function):
    """y^2 with a right first derivative, and a second one that is half of what it should be."""

    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        ctx.save_for_backward(y)
        return y * y

    @staticmethod
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *dy: Tensor
    ) -> Tensor:
        (y,) = ctx.saved_tensors
        return dy[0] * (y + y.detach())


def test_a_wrong_second_derivative_is_rejected_and_the_first_passes() -> None:
    square: Any = _Square.apply
    adapter = Changed(outputs=lambda y: Output(square(y.o), y.final_state))
    assert rejected(adapter, order="first") == {}
    ((_, message),) = rejected(adapter, order="second").items()
    assert "wrong second derivative with respect to" in message


class _Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor) -> Tensor:
        del ctx
        return y.clone()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *dy: Tensor
    ) -> Tensor:
        del ctx
        return dy[0].clone()


def test_a_backward_without_a_derivative_of_its_own_is_skipped_with_that_reason() -> None:
    once: Any = _Once.apply
    adapter = Changed(outputs=lambda y: Output(once(y.o), once(y.final_state)))
    assert rejected(adapter, order="first") == {}
    (outcome,) = gradcheck(adapter, DENSE, order="second")
    assert outcome.status is Status.SKIP and outcome.message.startswith("first derivatives only")


@pytest.mark.parametrize("order", ORDERS)
def test_a_kernel_without_a_graph_is_forward_only_and_skipped(order: Any) -> None:
    adapter = Changed(outputs=lambda y: Output(y.o.detach(), y.final_state.detach()))
    (outcome,) = gradcheck(adapter, DENSE, order=order)
    assert outcome.status is Status.SKIP


def test_other_formats_are_skipped() -> None:
    (outcome,) = gradcheck(Changed(), DENSE.replace(dtype="fp32"))
    assert outcome.status is Status.SKIP and "float64" in outcome.message


def test_a_kernel_that_raises_on_its_way_back_is_an_error_not_a_traceback() -> None:
    def fails(_: Gradients[Any]) -> Gradients[Any]:
        raise RuntimeError("no backward on Tuesdays")

    (outcome,) = gradcheck(Changed(fails), DENSE)
    assert outcome.status is Status.ERROR and "Tuesdays" in outcome.message
