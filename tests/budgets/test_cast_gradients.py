"""Token loops in torch whose state is cast to 16 bits after every token: autograd casts the
gradient of the state at the same place. They conform; a gradient in fewer bits, or cut off, does
not.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.backward import backward_members
from kdaverify.budgets.cast_states import cast_members
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.formats import FORMATS
from kdaverify.problems import Problem
from oracles.inputs import Inputs
from tests.budgets.cast_ports import WRONG, Cast, CastReference, Leaves, changing, ratios, tested

NAME, IO = "recurrent-fp32-bf16carry", FORMATS["bf16"]
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
def _tested(problem: str) -> CastReference:
    return tested(PROBLEMS[problem], NAME)


def _loop(x: Inputs, leaves: Leaves, cast: Cast) -> tuple[Tensor, Tensor]:
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


def _worst(problem: str, cast: Cast) -> float:
    return max(ratios(_tested(problem), _loop, cast).values())


@pytest.mark.parametrize("problem", PROBLEMS)
def test_the_gradient_of_a_cast_state_may_be_cast_as_autograd_does(problem: str) -> None:
    assert _worst(problem, lambda S: S.bfloat16().float()) <= 1


@pytest.mark.parametrize("problem", PROBLEMS)
def test_so_may_that_of_every_read_of_it(problem: str) -> None:
    assert _worst(problem, lambda S: S.bfloat16()) <= 1


@pytest.mark.parametrize("problem", PROBLEMS)
def test_so_may_it_pass_as_it_is(problem: str) -> None:
    assert _worst(problem, changing(lambda dS: dS)) <= 1


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
def test_a_gradient_in_fewer_bits_is_over_tolerance(change: Cast) -> None:
    assert _worst("long", changing(change)) > 1


@pytest.mark.parametrize(
    "name", ["recurrent-fp32", "recurrent-fp32-bf16carry[dS:fp32]", "chunk64-bf16-bf16carry"]
)
def test_only_a_loop_with_a_narrow_carried_gradient_casts_it(name: str) -> None:
    contract = contract_from_name(name)
    assert not cast_members(backward_members(contract, IO), contract, IO)
