"""The ensemble has the kernels that a contract admits:
each agrees with the definition, and errs as the contract lets it.
"""

from __future__ import annotations

import pytest
import torch

from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.emulate import RESIDUAL
from kdaverify.budgets.ensemble import ContractOverflow, emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.pipeline import run_form
from kdaverify.budgets.standard import standard
from kdaverify.budgets.statistics import rms
from kdaverify.problems import Problem
from oracles.arithmetic import Arithmetic
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


ONE_CHANNEL = Problem(
    B=1, T=15, H=1, HV=1, K=1, V=32, dtype="fp16", seed=0,
    gate="zero", key="random", beta="one", state="random", value="powers-of-two",
)  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_a_difference_rounded_before_its_solve_conforms(seed: int) -> None:
    """Keys of one channel erase all that was written: what is rounded first is all that is left."""
    inputs, io = ONE_CHANNEL.replace(seed=seed).inputs(), FORMATS["fp16"]
    declared = contract_from_name("chunk16-fp16-fp32solve")
    known = standard(inputs, declared, io, emulate(inputs, declared, io))
    store = Arithmetic(store=lambda name, x: declared.stored(name, x, io))
    _, final = run_form(declared, inputs, dtype=torch.float32, arithmetic=store, stages=RESIDUAL)
    allowed, exact = known.budgets["final_state"], known.exact("final_state")
    error = exact.error(final.double())
    assert max(allowed.ratios(allowed.measure(error, exact)).values()) <= 1


def test_a_state_beyond_the_carried_format_overflows() -> None:
    inputs = ONE_CHANNEL.replace(state="beyond-fp16").inputs()
    with pytest.raises(ContractOverflow, match="carries it in fp16"):
        emulate(inputs, contract_from_name("chunk16-fp16-fp16carry"), FORMATS["fp16"])
