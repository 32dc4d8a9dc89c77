"""What one token makes of a state: conforming kernels whose exponential or cache rounds otherwise
than a library's pass, kernels of fewer bits do not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from kdaverify.budgets.ceiling import Ceiling, Ceilings
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.ensemble import emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import Reference, standard
from kdaverify.operator import problem_from_json
from kdaverify.problems import Problem
from oracles.running_error import enclosed

Exp = Callable[[Tensor], Tensor]
FADING = Problem(
    B=2, T=1, H=2, HV=4, K=64, V=64, dtype="bf16", seed=16,
    gate="mild", key="random", beta="zero", state="random", value="normal",
)  # fmt: skip
"""Nothing is written: S_T is S_0 times its decays."""


@functools.cache
def reference(contract: str, text: str) -> Reference:
    problem, declared = problem_from_json(text), contract_from_name(contract)
    inputs, io = problem.inputs(), FORMATS[problem.dtype]
    return standard(inputs, declared, io, emulate(inputs, declared, io))


def ratio(contract: str, problem: Problem, final: Tensor) -> float:
    """S_T over its tolerance."""
    known = reference(contract, problem.to_json())
    allowed, truth = known.budgets["final_state"], known.exact("final_state")
    return max(allowed.ratios(allowed.measure(truth.error(final.double()), truth)).values())


def ratio_of_decays(contract: str, gate: str, exp: Exp, start: Exp, end: Exp) -> float:
    """Of a kernel that rounds the state by `start` as it reads it, and by `end` as it stores it."""
    problem = FADING.replace(gate=gate)
    x = problem.inputs()
    final = end(exp(x.g[:, 0].float())[..., None] * start(x.state.float()))
    return ratio(contract, problem, final)


def of_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.exp(x.numpy()))


def short(bits: int) -> Exp:
    """exp to so many bits."""
    return lambda x: (torch.exp(x) * 2.0**bits).round() / 2.0**bits


@pytest.mark.parametrize("contract", ["chunk64-fp32", "chunk48-fp32", "chunk32-fp32"])
@pytest.mark.parametrize("gate", ["mild", "log-sigmoid"])
@pytest.mark.parametrize("exp", [torch.exp, of_numpy])
def test_exponentials_of_libraries_conform(contract: str, gate: str, exp: Exp) -> None:
    assert ratio_of_decays(contract, gate, exp, Tensor.float, Tensor.float) <= 1


@pytest.mark.parametrize("gate", ["mild", "log-sigmoid"])
def test_an_exponential_of_21_bits_does_not(gate: str) -> None:
    assert ratio_of_decays("chunk64-fp32", gate, short(21), Tensor.float, Tensor.float) > 1.5


@pytest.mark.parametrize("gate", ["slow", "mild"])
def test_a_cache_in_16_bits_may_round_the_initial_state(gate: str) -> None:
    rounded = FORMATS["bf16"].round
    for start in (Tensor.float, rounded):
        assert ratio_of_decays("chunk64-bf16-bf16carry", gate, torch.exp, start, rounded) <= 1


@pytest.mark.parametrize("gate", ["slow", "mild"])
def test_one_that_cuts_off_does_not_conform(gate: str) -> None:
    def cut(x: Tensor) -> Tensor:
        return (x.float().view(torch.int32) & -(1 << 16)).view(torch.float32)

    assert ratio_of_decays("chunk64-bf16-bf16carry", gate, torch.exp, cut, cut) > 1.2


MAPPED = FADING.replace(dtype="fp32", beta="uniform", gate="log-sigmoid", T=2)


def final_state_of_maps(kept: Exp) -> Tensor:
    """S_T of a kernel that makes the map of the state of both tokens first, in fp32."""
    x, heads = MAPPED.inputs(), MAPPED.HV // MAPPED.H
    k = x.k.float().transpose(1, 2).repeat_interleave(heads, 1)
    v, sums = x.v.float().transpose(1, 2), x.g.float().cumsum(1).transpose(1, 2)
    beta = x.beta.float().transpose(1, 2)[..., None]
    read, written = k * sums.exp(), k * (sums[..., -1:, :] - sums).exp()
    within = (k[..., 1, :] * k[..., 0, :] * (sums[..., 1, :] - sums[..., 0, :]).exp()).sum(-1)
    solved = torch.eye(2).expand(*within.shape, 2, 2).clone()
    solved[..., 1, 0] = -beta[..., 1, 0] * within
    w, u = solved @ (beta * read), solved @ (beta * v)
    kept_of = torch.diag_embed(sums[..., -1, :].exp())
    return kept(kept_of - written.mT @ w) @ x.state.float() + written.mT @ u


def test_maps_of_the_state_conform_where_they_are_declared() -> None:
    assert ratio("chunk16-fp32[transition:formed]", MAPPED, final_state_of_maps(Tensor.float)) <= 1
    assert ratio("chunk16-fp32", MAPPED, final_state_of_maps(Tensor.float)) > 1.2


@pytest.mark.parametrize("fmt", ["tf32", "bf16"])
def test_maps_in_fewer_bits_do_not(fmt: str) -> None:
    final = final_state_of_maps(FORMATS[fmt].round)
    assert ratio("chunk16-fp32[transition:formed]", MAPPED, final) > 10


@pytest.mark.parametrize(
    ("name", "gates"),
    [
        ("chunk16-fp32", "channel"),
        ("chunk16-fp32[decay:scalar]", "head"),
        ("chunk16-bf16", "channel"),
        ("chunk16-fp16[decay:scalar]", "head"),
    ],
)
def test_the_proven_bound_holds_for_maps(name: str, gates: str) -> None:
    brackets = f"{name.removesuffix(']')}{';' if '[' in name else '['}transition:formed]"
    dtype = name.removeprefix("chunk16-")[:4]
    inputs = MAPPED.replace(T=40, gates=gates, dtype=dtype).inputs()
    contract, io = contract_from_name(brackets), FORMATS[dtype]
    truth, ceilings = enclosed(inputs), Ceilings(inputs, contract, io)
    of = Ceiling(ceilings, "final_state")
    for member, (_, final) in emulate(inputs, contract, io).rounded.items():
        error = truth.named()["final_state"].error(final)
        assert of.used(error, truth.named()["final_state"], io).ratio <= 1, member
