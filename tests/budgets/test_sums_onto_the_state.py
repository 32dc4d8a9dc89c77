"""Chunks in fp32 that add their tokens to the state one by one conform; the same loop with its
state in fewer bits, or cut off, does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.accelerator import toward_zero
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.ensemble import emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import Reference, standard
from kdaverify.problems import Problem

CONTRACTS = ("chunk32-fp32", "chunk32-fp32[order:in-order]", "chunk32-fp32[decay:scalar]")
FP32 = FORMATS["fp32"]
FAINT = Problem(
    B=1, T=96, H=1, HV=1, K=33, V=64, dtype="fp32", seed=37, gates="head",
    gate="zero", key="tiny", beta="two", state="large", value="normal",
)  # fmt: skip
"""What a token adds is a millionth of the state: the error of S_T is that of its last sums."""


@functools.cache
def reference(contract: str) -> Reference:
    inputs, declared = FAINT.inputs(), contract_from_name(contract)
    return standard(inputs, declared, FP32, emulate(inputs, declared, FP32))


def final_state(kept: Callable[[Tensor], Tensor]) -> Tensor:
    """S_T of chunks of 32 in fp32 whose loop over tokens begins with the state, and keeps it so."""
    inputs = FAINT.inputs()
    k, v, beta = inputs.k[0, :, 0].float(), inputs.v[0, :, 0].float(), inputs.beta[0].float()
    state = inputs.state[0, 0].float()
    for first in range(0, FAINT.T, 32):
        rows = slice(first, first + 32)
        K, b = k[rows], beta[rows]
        system = torch.eye(len(K)) + (b * (K @ K.T)).tril(-1)
        U = torch.linalg.solve_triangular(system, b * (v[rows] - K @ state), upper=False)
        for key, value in zip(K, U, strict=True):
            state = kept(state.double() + torch.outer(key.double(), value.double())).float()
    return state


def ratio(contract: str, kept: Callable[[Tensor], Tensor]) -> float:
    known = reference(contract)
    allowed, truth = known.budgets["final_state"], known.exact("final_state")
    found = final_state(kept)[None, None].double()
    return max(allowed.ratios(allowed.measure(truth.error(found), truth)).values())


@pytest.mark.parametrize("contract", CONTRACTS)
def test_a_loop_that_begins_with_the_state_conforms(contract: str) -> None:
    assert ratio(contract, Tensor.float) <= 1


@pytest.mark.parametrize("contract", CONTRACTS)
@pytest.mark.parametrize("fmt", ["tf32", "bf16"])
def test_its_state_in_fewer_bits_is_over_tolerance(contract: str, fmt: str) -> None:
    assert ratio(contract, FORMATS[fmt].round) > 10


@pytest.mark.parametrize("contract", CONTRACTS)
def test_sums_that_are_cut_off_are_over_tolerance(contract: str) -> None:
    assert ratio(contract, toward_zero) > 1
