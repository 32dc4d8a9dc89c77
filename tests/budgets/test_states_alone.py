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

from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.ensemble import emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import Reference, standard
from kdaverify.problems import Problem

Exp = Callable[[Tensor], Tensor]
FADING = Problem(
    B=2, T=1, H=2, HV=4, K=64, V=64, dtype="bf16", seed=16,
    gate="mild", key="random", beta="zero", state="random", value="normal",
)  # fmt: skip
"""Nothing is written: S_T is S_0 times its decays."""


@functools.cache
def reference(contract: str, gate: str) -> Reference:
    inputs, declared, io = problem(gate).inputs(), contract_from_name(contract), FORMATS["bf16"]
    return standard(inputs, declared, io, emulate(inputs, declared, io))


def problem(gate: str) -> Problem:
    return FADING.replace(gate=gate)


def ratio(contract: str, gate: str, final: Tensor) -> float:
    """S_T over its tolerance."""
    known = reference(contract, gate)
    allowed, truth = known.budgets["final_state"], known.exact("final_state")
    return max(allowed.ratios(allowed.measure(truth.error(final.double()), truth)).values())


def faded(gate: str, exp: Exp, start: Exp, end: Exp) -> Tensor:
    inputs = problem(gate).inputs()
    return end(exp(inputs.g[:, 0].float())[..., None] * start(inputs.state.float()))


def of_numpy(x: Tensor) -> Tensor:
    return torch.from_numpy(np.exp(x.numpy()))


def short(bits: int) -> Exp:
    """exp to so many bits."""
    return lambda x: (torch.exp(x) * 2.0**bits).round() / 2.0**bits


@pytest.mark.parametrize("contract", ["chunk64-fp32", "chunk48-fp32", "chunk32-fp32"])
@pytest.mark.parametrize("gate", ["mild", "log-sigmoid"])
@pytest.mark.parametrize("exp", [torch.exp, of_numpy])
def test_exponentials_of_libraries_conform(contract: str, gate: str, exp: Exp) -> None:
    assert ratio(contract, gate, faded(gate, exp, Tensor.float, Tensor.float)) <= 1


@pytest.mark.parametrize("gate", ["mild", "log-sigmoid"])
def test_an_exponential_of_21_bits_does_not(gate: str) -> None:
    assert ratio("chunk64-fp32", gate, faded(gate, short(21), Tensor.float, Tensor.float)) > 1.5


@pytest.mark.parametrize("gate", ["slow", "mild"])
def test_a_cache_in_16_bits_may_round_the_initial_state(gate: str) -> None:
    rounded = FORMATS["bf16"].round
    for start in (Tensor.float, rounded):
        assert ratio("chunk64-bf16-bf16carry", gate, faded(gate, torch.exp, start, rounded)) <= 1


@pytest.mark.parametrize("gate", ["slow", "mild"])
def test_one_that_cuts_off_does_not_conform(gate: str) -> None:
    cut: Exp = lambda x: (x.float().view(torch.int32) & -(1 << 16)).view(torch.float32)  # noqa: E731
    assert ratio("chunk64-bf16-bf16carry", gate, faded(gate, torch.exp, cut, cut)) > 1.2
