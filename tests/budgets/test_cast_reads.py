"""Ports in chunks whose state is a tensor in 16 bits that every product casts: autograd rounds the
gradient of each read. They conform; a gradient of fewer bits, or without a part, does not.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.backward import backward_members
from kdaverify.budgets.cast_states import casting_reads
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.formats import FORMATS
from kdaverify.problems import Problem
from oracles.inputs import Inputs
from tests.budgets.cast_ports import (
    WRONG,
    Cast,
    CastReference,
    Leaves,
    Port,
    changing,
    ratios,
    tested,
)

COMMON: dict[str, Any] = {
    "dtype": "bf16", "key": "random", "beta": "uniform", "value": "normal", "state": "random",
}  # fmt: skip
PROBLEMS = {
    "a chunk": Problem(B=3, T=3, H=2, HV=2, K=8, V=8, gate="mild", seed=0, **COMMON),
    "slow": Problem(B=1, T=65, H=2, HV=2, K=32, V=32, gate="slow", seed=0, **COMMON),
    "wide": Problem(B=1, T=17, H=1, HV=1, K=136, V=256, gate="mild", seed=1, **COMMON),
}
SIZES = {
    "chunk16-bf16-bf16carry": 16,
    "chunk64-fp16-fp16carry": 64,
    "chunk16-bf16-bf16carry[decay:scalar]": 16,
    "recurrent-fp32-bf16carry": 1,
}
"""Tokens of a chunk, by the contract that a port in such chunks declares."""
CASTS: dict[str, Cast] = {"bf16": lambda S: S.bfloat16(), "fp16": lambda S: S.half()}


@cache
def _tested(name: str, contract: str) -> CastReference:
    one_gate = {"gates": "head"} if "scalar" in contract else {}
    dtype = "fp16" if "fp16" in contract else "bf16"
    return tested(PROBLEMS[name].replace(dtype=dtype, **one_gate), contract)


def _port(size: int) -> Port:
    def port(x: Inputs, leaves: Leaves, cast: Cast) -> tuple[Tensor, Tensor]:
        g = leaves["g"].float()
        wide = {name: leaves[name].float().transpose(1, 2) for name in ("q", "k", "v", "beta")}
        wide["g"] = (g if g.ndim == 4 else g[..., None]).transpose(1, 2)
        state, outs = cast(leaves["S"].float()), list[Tensor]()
        for first in range(0, x.q.shape[1], size):
            part = {name: one[:, :, first : first + size] for name, one in wide.items()}
            o, state = _chunk(**part, scale=x.factor, state=state, cast=cast)
            outs.append(o)
        o = torch.cat(outs, 2).transpose(1, 2)
        return o.to(leaves["q"].dtype), state.to(cast(state.float()).dtype)

    return port


def _chunk(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor, *, scale: float, state: Tensor,
    cast: Cast,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    low = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).tril()[..., None]
    sums = g.cumsum(-2)
    pairs = (sums[..., :, None, :] - sums[..., None, :, :]).masked_fill(~low, -torch.inf).exp()
    to_each, to_end = sums.exp(), (sums[..., -1:, :] - sums).exp()
    decayed = k[..., None, :, :] * pairs
    A = beta[..., None] * (k[..., :, None, :] * decayed).sum(-1).tril(-1)
    rows = beta[..., None] * (v - (k * to_each) @ state.float())
    written = torch.linalg.solve_triangular(
        A + torch.eye(A.shape[-1]), rows, upper=False, unitriangular=True
    )
    scores = (q[..., :, None, :] * decayed).sum(-1)
    o = scale * ((q * to_each) @ state.float() + scores @ written)
    kept = to_each[..., -1, :, None] * state.float()
    return o, cast(kept + (k * to_end).mT @ written)


@pytest.mark.rotates
@pytest.mark.parametrize("contract", [name for name, size in SIZES.items() if size > 1])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_state_may_be_cast_by_every_product_that_reads_it(problem: str, contract: str) -> None:
    cast = CASTS["fp16" if "fp16" in contract else "bf16"]
    found = ratios(_tested(problem, contract), _port(SIZES[contract]), cast)
    assert max(found.values()) <= 1


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("problem", ["slow", "wide"])
def test_a_wrong_gradient_of_the_state_is_over_tolerance(problem: str, change: Cast) -> None:
    contract = "chunk16-bf16-bf16carry"
    found = ratios(_tested(problem, contract), _port(SIZES[contract]), changing(change))
    assert found["d_initial_state"] > 1.5


def _casting(name: str) -> list[Emulator]:
    contract, io = contract_from_name(name), FORMATS["bf16"]
    return casting_reads(backward_members(contract, io)[0], contract, io)


@pytest.mark.parametrize("contract", SIZES)
def test_every_form_with_a_narrow_carried_gradient_has_such_a_kernel(contract: str) -> None:
    assert _casting(contract)


@pytest.mark.parametrize("name", ["chunk64-bf16", "chunk16-bf16-bf16carry[dS:fp32]"])
def test_no_other_form_has(name: str) -> None:
    assert not _casting(name)
