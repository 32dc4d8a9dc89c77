"""The ensemble has the kernels that a contract admits:
each agrees with the definition, and errs as the contract lets it.
"""

from __future__ import annotations

import pytest
import torch

from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.ensemble import emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.statistics import rms
from kdaverify.problems import Problem
from oracles.recurrence import recurrence

PROBLEM = Problem(
    B=1, T=80, H=1, HV=2, K=32, V=16, dtype="bf16", seed=0,
    gate="log-sigmoid", key="random", beta="uniform", state="random", value="normal",
)  # fmt: skip
CONTRACTS = (
    "chunk64-bf16-tf32solve",
    "chunk64-bf16-anchored-tf32solve",
    "chunk64-bf16-fp32solve",
    "chunk64-tf32",
    "chunk16-bf16-fp32factors",
    "chunk16-bf16-bf16factors",
    "chunk16-bf16-bf16factors-bf16carry[sub_block:8;scale:rounded;rounded_beta:bf16]",
)


@pytest.mark.parametrize("gate", ["log-sigmoid", "one-token-hard-reset", "bound-20"])
@pytest.mark.parametrize("name", CONTRACTS)
def test_every_member_and_every_draw_stays_near_the_definition(name: str, gate: str) -> None:
    inputs = PROBLEM.replace(gate=gate).inputs()
    o, final_state = recurrence(inputs)
    emulation = emulate(inputs, contract_from_name(name), FORMATS["bf16"])
    for run in (*emulation.rounded.values(), *emulation.drawn):
        assert all(bool(torch.isfinite(output).all()) for output in run)
        assert rms(run[0] - o) <= 0.02 * rms(o)
        assert rms(run[1] - final_state) <= 0.02 * rms(final_state)


def _worst(name: str, member: str) -> float:
    inputs = PROBLEM.inputs()
    o, _ = recurrence(inputs)
    return rms(
        emulate(inputs, contract_from_name(name), FORMATS["bf16"]).rounded[member][0] - o
    ) / rms(o)


def test_units_that_truncate_err_more_than_those_that_round() -> None:
    inputs = PROBLEM.replace(dtype="fp32").inputs()
    o, _ = recurrence(inputs)
    runs = emulate(inputs, contract_from_name("chunk64-tf32"), FORMATS["fp32"]).rounded
    rounded, truncated = (
        rms(runs[name][0] - o) for name in ("matrix units", "matrix units that truncate")
    )
    assert truncated > 1.5 * rounded


def test_factors_cost_roundings() -> None:
    plain = _worst("chunk16-bf16-bf16factors", "library order")
    assert _worst("chunk16-bf16-fp32factors", "factored decays") > 1.05 * plain
    assert _worst("chunk16-bf16-bf16factors", "factored decays") > _worst(
        "chunk16-bf16-fp32factors", "factored decays"
    )
