"""Ports in torch whose state is cast to 16 bits, their gradients by autograd, and what changes the
gradient of the state on its way; run by nobody but the tests of casts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.gradient_standard import gradient_standard
from kdaverify.budgets.standard import Reference
from kdaverify.problems import Problem, cotangents
from oracles.gradients import Cotangents
from oracles.inputs import Inputs

GRADIENTS: Final = {
    "q": "dq", "k": "dk", "v": "dv", "g": "dg", "beta": "dbeta", "S": "d_initial_state",
}  # fmt: skip
Leaves = dict[str, Tensor]
Cast = Callable[[Tensor], Tensor]
Port = Callable[[Inputs, Leaves, Cast], tuple[Tensor, Tensor]]
"""A call, its leaves, and what the state is cast by, to o and the final state."""


class CastReference(NamedTuple):
    """A problem, its loss, and what gradients of it are held against."""

    inputs: Inputs
    loss: Cotangents
    reference: Reference


def tested(problem: Problem, contract: str) -> CastReference:
    x, loss, io = problem.inputs(), cotangents(problem, "both"), FORMATS[problem.dtype]
    declared = contract_from_name(contract)
    made = emulate_gradients(x, loss, declared, io)
    return CastReference(x, loss, gradient_standard(x, loss, declared, io, made))


@torch.inference_mode(mode=False)
def ratios(given: CastReference, port: Port, cast: Cast) -> Mapping[str, float]:
    """The worst statistic of every gradient of a port / its tolerance."""
    x, loss, reference = given
    values = {"q": x.q, "k": x.k, "v": x.v, "g": x.g, "beta": x.beta, "S": x.state}
    leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
    with torch.enable_grad():
        outputs = port(x, leaves, cast)
    do, dS = loss.of(x, torch.float32)
    incoming = [do.to(outputs[0].dtype), dS.to(outputs[1].dtype)]
    found = torch.autograd.grad(outputs, [*leaves.values()], incoming)

    def ratio(name: str, value: Tensor) -> float:
        budget, exact = reference.budgets[name], reference.exact(name)
        measured = budget.measure(exact.error(value.double()), exact)
        return max(budget.ratios(measured).values())

    names = map(GRADIENTS.__getitem__, leaves)
    return {name: ratio(name, dx) for name, dx in zip(names, found, strict=True)}


class _Changed(torch.autograd.Function):
    """The state in bf16, and a change of its gradient."""

    @staticmethod
    def forward(ctx: Any, S: Tensor, change: Cast) -> Tensor:
        ctx.change = change
        return S.bfloat16().float()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        return ctx.change(grad_outputs[0]), None


def changing(change: Cast) -> Cast:
    """A cast to bf16 that does to the gradient of the state what `change` does."""
    return lambda S: _applied(S, change)


def _applied(S: Tensor, change: Cast) -> Tensor:
    return _Changed.apply(S, change)  # pyright: ignore[reportReturnType, reportUnknownMemberType]


def _bits(dS: Tensor, bits: int) -> Tensor:
    mantissa, exponent = torch.frexp(dS)
    return torch.ldexp((mantissa * 2**bits).round() / 2**bits, exponent)


def _cut(dS: Tensor) -> Tensor:
    return (dS.contiguous().view(torch.int32) & -(1 << 16)).view(torch.float32)


WRONG: Final[Mapping[str, Cast]] = {
    "six bits": lambda dS: _bits(dS, 6),
    "cut off": _cut,
    "1 % too large": lambda dS: (dS * 1.01).bfloat16().float(),
}
"""Changes of the gradient of a state in fp32 that no kernel whose state is in bf16 may make."""
