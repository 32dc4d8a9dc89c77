"""Gradcheck: a float64 kernel's derivatives against differences, as torch.autograd does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.conversions import canonical_gradient
from kdaverify.checks.execute import CallError, watched
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.checks.status import Status
from kdaverify.problems import Problem, cotangents
from oracles.autograd import ForwardOnlyError
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS, OUTPUTS, SIGNATURE

Order = Literal["first", "second"]
ORDERS: Final[tuple[Order, ...]] = ("first", "second")
"""First derivatives, tensor by tensor; or derivatives of the derivatives, by torch's autograd of
torch's autograd."""

ONCE: Final = "first derivatives only"
# The default of torch.autograd.gradcheck. Half the step would double the rounding error of a
# difference, which is the larger of its two errors.
STEP: Final = 1e-6
# Unit roundoff of float64.
UNIT: Final = 2.0**-53
# Roundings on the way to one element of a tiny problem: nine tokens of some thirty operations each.
ROUNDINGS: Final = 2.0**8
# No relative tolerance: the rounding errors of the differences are the absolute one.
OPTIONS: Final[Mapping[str, Any]] = {
    "eps": STEP,
    "rtol": 0.0,
    "fast_mode": True,
    "check_undefined_grad": False,
}

Function = Callable[..., tuple[Tensor, ...]]


def gradcheck(adapter: Adapter, problem: Problem, *, order: Order = "first") -> list[Outcome]:
    """Central differences of the kernel's outputs against its derivatives, a direction a tensor.

    Math: a difference over 2 STEP of outputs y is off from the derivative by 2^8 u |y| / STEP of
    rounding and STEP^2 y''' / 6 of curvature; the first is the larger one wherever y''' < 2^17 |y|,
    and is the tolerance of an element.

    Args:
        problem: in fp64, tiny, its gates and betas inside their domain by more than STEP.
        order: "first": of the outputs; "second": of the gradients.
    """
    if problem.dtype != "fp64":
        return skipped("gradcheck takes differences of 1e-6, which float64 alone resolves")
    inputs = problem.inputs()
    names = [name for name in GRADIENTS.values() if getattr(inputs, name) is not None]
    by_order = {"first": _first, "second": _second}[order]
    try:
        return watched(lambda: by_order(adapter, problem, inputs, names), "call")
    except ForwardOnlyError as reason:
        return skipped(str(reason))
    except CallError as fault:
        return [Outcome(fault.output, fault.status, fault.message)]


def _first(adapter: Adapter, problem: Problem, inputs: Inputs, names: list[str]) -> list[Outcome]:
    function = _own(adapter, inputs, names, adapter.exposes(problem))
    noise = _noise(function(*_leaves(inputs, names, ())))

    def complaint(*moved: str) -> GradcheckError | None:
        try:
            torch.autograd.gradcheck(function, _leaves(inputs, names, moved), atol=noise, **OPTIONS)
        except GradcheckError as reason:
            return reason
        return None

    together = complaint(*names)
    # What all inputs together complain of, one of them does by itself, unless only all of them show
    # it.
    single = {name: complaint(name) if together else None for name in names}
    if together and not any(single.values()):
        return [Outcome("call", Status.FAIL, f"gradients: {_reported(together)}")]
    return [
        _judged(gradient, name, single[name], noise)
        for gradient, name in GRADIENTS.items()
        if name in names
    ]


def _judged(gradient: str, name: str, reason: GradcheckError | None, noise: float) -> Outcome:
    if reason is None:
        return Outcome(
            gradient,
            Status.PASS,
            f"{gradient}: differences of the outputs agree to {noise:.1e} an element",
        )
    return Outcome(
        gradient,
        Status.FAIL,
        f"{gradient}: not the derivative of the outputs with respect to {name}:"
        f" {_reported(reason)}",
    )


def _second(adapter: Adapter, problem: Problem, inputs: Inputs, names: list[str]) -> list[Outcome]:
    exposed = adapter.exposes(problem)

    def function(*tensors: Tensor) -> tuple[Tensor, ...]:
        output = adapter.forward(replace(inputs, **dict(zip(names, tensors, strict=True))))
        return tuple(getattr(output, name) for name in exposed)

    leaves = _leaves(inputs, names, tuple(names))
    with torch.enable_grad():
        outputs = function(*leaves)
        given = _cotangents(problem, exposed)
        if not all(y.requires_grad for y in outputs):
            return skipped(
                f"{ONCE}: its outputs carry no graph of torch that could be differentiated again"
            )
        found = torch.autograd.grad(
            outputs, leaves, given, create_graph=True, allow_unused=True, materialize_grads=True
        )
    attached = [dx for dx in found if dx.requires_grad]
    # Gradients are linear in the cotangents: a graph that does not lead from one to the other is
    # none.
    if not attached or None in torch.autograd.grad(
        attached, given, [*map(torch.ones_like, attached)], retain_graph=True, allow_unused=True
    ):
        return skipped(
            f"{ONCE}: its backward carries no graph of torch, or is marked as differentiable once"
        )
    noise = _noise((*outputs, *found))
    try:
        torch.autograd.gradgradcheck(function, leaves, given, atol=noise, **OPTIONS)
    except GradcheckError as reason:
        return [_second_wrong(reason, names, exposed)]
    return [
        Outcome(
            "call",
            Status.PASS,
            f"differences of all gradients agree with second derivatives to {noise:.1e} an element",
        )
    ]


def _own(adapter: Adapter, inputs: Inputs, names: list[str], exposed: tuple[str, ...]) -> Function:
    """The kernel's forward with its own backward, as a function of torch."""

    class GradcheckFunction(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
            ctx.call = replace(
                inputs,
                **{
                    name: tensor.detach().clone()
                    for name, tensor in zip(names, tensors, strict=True)
                },
            )
            output = adapter.forward(ctx.call)
            return tuple(getattr(output, name).detach() for name in exposed)

        @staticmethod
        def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
            ctx: Any, *dy: Tensor
        ) -> tuple[Tensor, ...]:
            by_output = dict(zip(exposed, dy, strict=True))
            given = Cotangents(*(by_output.get(output) for output in OUTPUTS))
            found = adapter.gradients(ctx.call.copied(), given).named()
            received, contract = adapter.received(ctx.call), adapter.backward_contract("fp64")
            return tuple(
                canonical_gradient(name, found[gradient], ctx.call, received, contract)
                for gradient, name in GRADIENTS.items()
                if name in names
            )

    return GradcheckFunction.apply


def _leaves(inputs: Inputs, names: list[str], moved: tuple[str, ...]) -> tuple[Tensor, ...]:
    return tuple(getattr(inputs, name).clone().requires_grad_(name in moved) for name in names)


def _cotangents(problem: Problem, exposed: tuple[str, ...]) -> list[Tensor]:
    given = cotangents(problem, "both")
    by_output = {output: getattr(given, name) for name, output in SIGNATURE.cotangents.items()}
    return [dy.clone().requires_grad_() for name in exposed if (dy := by_output[name]) is not None]


def _noise(values: tuple[Tensor, ...]) -> float:
    largest = max(float(y.detach().abs().max()) for y in values if y.numel())
    return ROUNDINGS * UNIT * largest / STEP


_MISMATCH = re.compile(r"output (\d+) with respect to input (\d+)")


def _second_wrong(reason: GradcheckError, names: list[str], exposed: tuple[str, ...]) -> Outcome:
    gradients = [gradient for gradient, name in GRADIENTS.items() if name in names]
    sources = [*names, *(f"the cotangent of {name}" for name in exposed)]
    at = _MISMATCH.search(str(reason))
    if at is None:
        return Outcome("call", Status.FAIL, f"second derivatives: {_reported(reason)}")
    gradient, source = gradients[int(at[1])], sources[int(at[2])]
    return Outcome(
        gradient,
        Status.FAIL,
        f"{gradient}: wrong second derivative with respect to {source}: {_reported(reason)}",
    )


def _reported(reason: GradcheckError) -> str:
    """The two numbers of a mismatch, or the first line of any other complaint."""
    lines = str(reason).splitlines()
    numbers = [line for line in lines if line.startswith(("numerical:", "analytical:"))][:2]
    return (
        ", ".join(
            line.replace("tensor(", "").replace(", dtype=torch.float64)", "") for line in numbers
        )
        or lines[0]
    )
