"""The ensemble's backward: each member agrees with the definition,
and errs as the contract lets it.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.statistics import rms
from kdaverify.budgets.sums import tree
from kdaverify.problems import Problem, cotangents
from oracles.adjoint import adjoint

PROBLEM = Problem(
    B=1,
    T=80,
    H=1,
    HV=2,
    K=16,
    V=24,
    dtype="bf16",
    gate="log-sigmoid",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=0,
)
CONTRACTS = (
    "chunk64-bf16",
    "chunk64-tf32",
    "chunk64-bf16-tf32solve",
    "chunk64-bf16-anchored-tf32solve",
    "chunk16-bf16-fp32factors",
    "chunk16-bf16-bf16carry[storage_rounding:truncate]",
    "chunk16-fp32",
    "chunk64-fp32[order:in-order]",
    "recurrent-fp32",
)


@pytest.mark.rotates
@pytest.mark.parametrize("pack", [{}, {"T": 90, "lengths": (0, 40, 33, 1)}], ids=["dense", "pack"])
@pytest.mark.parametrize("name", CONTRACTS)
def test_every_member_and_every_draw_stays_near_the_definition(
    name: str, pack: dict[str, Any]
) -> None:
    problem = PROBLEM.replace(**pack)
    inputs, given = problem.inputs(), cotangents(problem, "both")
    exact = adjoint(inputs, given).named()
    emulation = emulate_gradients(inputs, given, contract_from_name(name), FORMATS["bf16"])
    for member, found in {
        **emulation.rounded,
        **{str(n): draw for n, draw in enumerate(emulation.drawn)},
    }.items():
        for gradient, value in found.named().items():
            assert rms(value - exact[gradient]) <= 0.03 * rms(exact[gradient]), (member, gradient)


def test_a_sum_that_stays_in_storage_rounds_at_every_level() -> None:
    ones = torch.full((3, 1000), 1.0)
    assert tree(FORMATS["fp32"])(ones).tolist() == [1000.0] * 3
    # 8 bits hold every power of two, and 1000 = 512 + 488 is none.
    assert (
        tree(FORMATS["bf16"])(ones).tolist()
        == [FORMATS["bf16"].round(torch.tensor(1000.0)).item()] * 3
    )
    x = torch.randn(64, 128, generator=torch.Generator().manual_seed(1))
    error = tree(FORMATS["bf16"])(x) - FORMATS["bf16"].round(x).sum(-1)
    assert 0 < float(error.abs().max()) < 0.5
