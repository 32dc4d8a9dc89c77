"""Token loops in torch whose state is cast to 16 bits after every token: autograd casts the
gradient of the state at the same place. They conform; a gradient in fewer bits, or cut off, does
not.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.backward import cast_members, emulate_gradients
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.gradient_standard import gradient_standard
from kdaverify.budgets.standard import Reference
from kdaverify.problems import Problem, cotangents
from oracles.gradients import Cotangents
from oracles.inputs import Inputs

NAME, IO = "recurrent-fp32-bf16carry", FORMATS["bf16"]
NAMES = {"q": "dq", "k": "dk", "v": "dv", "g": "dg", "beta": "dbeta", "S": "d_initial_state"}
Cast = Callable[[Tensor], Tensor]
COMMON: dict[str, Any] = {"dtype": "bf16", "key": "random", "beta": "uniform", "value": "normal"}
PROBLEMS = {
    "short": Problem(B=3, T=4, H=2, HV=4, K=3, V=2, gate="mild", state="random", seed=0, **COMMON),
    "single tokens": Problem(
        B=4, T=1, H=2, HV=4, K=8, V=3, gate="log-sigmoid", state="random", seed=0, **COMMON
    ),
    "long": Problem(
        B=1, T=100, H=2, HV=2, K=16, V=16, gate="slow", state="large", seed=1, **COMMON
    ),
}


@cache
def _tested(problem: str) -> tuple[Inputs, Cotangents, Reference]:
    x, loss = PROBLEMS[problem].inputs(), cotangents(PROBLEMS[problem], "both")
    contract = contract_from_name(NAME)
    made = emulate_gradients(x, loss, contract, IO)
    return x, loss, gradient_standard(x, loss, contract, IO, made)


def _loop(x: Inputs, leaves: dict[str, Tensor], cast: Cast) -> tuple[Tensor, Tensor]:
    of_heads = {
        name: leaves[name].float().repeat_interleave(x.HV // x.H, 2).transpose(1, 2)
        for name in ("q", "k")
    }
    v, g, beta = (leaves[name].float().transpose(1, 2) for name in ("v", "g", "beta"))
    state, outs = leaves["S"].float(), list[Tensor]()
    for t in range(v.shape[2]):
        q, k = (of_heads[name][:, :, t, :, None] for name in ("q", "k"))
        state = state * g[:, :, t, :, None].exp()
        u = beta[:, :, t, None] * (v[:, :, t] - (k * state).sum(2))
        state = cast(state + k * u[:, :, None])
        outs.append(x.factor * (q * state).sum(2))
    return torch.stack(outs, 1).to(leaves["q"].dtype), state.bfloat16()


@torch.inference_mode(mode=False)
def _worst(problem: str, cast: Cast) -> dict[str, float]:
    x, loss, reference = _tested(problem)
    given = {"q": x.q, "k": x.k, "v": x.v, "g": x.g, "beta": x.beta, "S": x.state}
    leaves = {name: value.clone().requires_grad_() for name, value in given.items()}
    with torch.enable_grad():
        outputs = _loop(x, leaves, cast)
    do, dS = loss.of(x, torch.float32)
    incoming = [do.to(outputs[0].dtype), dS.to(outputs[1].dtype)]
    found = torch.autograd.grad(outputs, [*leaves.values()], incoming)

    def ratio(name: str, value: Tensor) -> float:
        budget, exact = reference.budgets[name], reference.exact(name)
        measured = budget.measure(exact.error(value.double()), exact)
        return max(budget.ratios(measured).values())

    return {NAMES[name]: ratio(NAMES[name], dx) for name, dx in zip(leaves, found, strict=True)}


class _Changed(torch.autograd.Function):
    """The state in bf16, and a change of its gradient."""

    @staticmethod
    def forward(ctx: Any, S: Tensor, change: Cast) -> Tensor:
        ctx.change = change
        return S.bfloat16().float()

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> Any:
        return ctx.change(grad_outputs[0]), None


def _changing(change: Cast) -> Cast:
    return lambda S: _applied(S, change)


def _applied(S: Tensor, change: Cast) -> Tensor:
    return _Changed.apply(S, change)  # pyright: ignore[reportReturnType, reportUnknownMemberType]


def _bits(dS: Tensor, bits: int) -> Tensor:
    mantissa, exponent = torch.frexp(dS)
    return torch.ldexp((mantissa * 2**bits).round() / 2**bits, exponent)


def _cut(dS: Tensor) -> Tensor:
    return (dS.contiguous().view(torch.int32) & -(1 << 16)).view(torch.float32)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_gradient_of_a_cast_state_may_be_cast_as_autograd_does(problem: str) -> None:
    assert max(_worst(problem, lambda S: S.bfloat16().float()).values()) <= 1


@pytest.mark.parametrize("problem", PROBLEMS)
def test_so_may_it_pass_as_it_is(problem: str) -> None:
    assert max(_worst(problem, _changing(lambda dS: dS)).values()) <= 1


WRONG: dict[str, Cast] = {
    "six bits": lambda dS: _bits(dS, 6),
    "cut off": _cut,
    "1 % too large": lambda dS: (dS * 1.01).bfloat16().float(),
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_gradient_in_fewer_bits_is_over_tolerance(change: Cast) -> None:
    assert max(_worst("long", _changing(change)).values()) > 1


@pytest.mark.parametrize(
    "name", ["recurrent-fp32", "recurrent-fp32-bf16carry[dS:fp32]", "chunk64-bf16-bf16carry"]
)
def test_only_a_loop_with_a_narrow_carried_gradient_casts_it(name: str) -> None:
    assert not cast_members(contract_from_name(name), IO)
