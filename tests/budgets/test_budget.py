"""The budget admits every legal kernel, also those it was not computed from, and notices a tenth more error than they make."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kdaverify.budgets.budget import Budget, budget, small_sample
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.emulate import Emulator, rounded_operands
from kdaverify.budgets.family import family
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import ContractOverflow, standard
from kdaverify.budgets.statistics import ErrorStatistics, statistics
from kdaverify.problems import Problem
from oracles.enclosure import Enclosure

PROBLEM = Problem(B=1, T=130, H=2, HV=2, K=32, V=48, dtype="bf16", gate="slow", key="random", beta="uniform", state="random", value="normal", seed=5)
CONTRACT = contract_from_name("chunk64-bf16")
BF16 = FORMATS["bf16"]


def exactly(value: torch.Tensor) -> Enclosure:
    nothing = torch.zeros_like(value)
    return Enclosure(value, nothing, nothing, value == 0)


def test_every_member_of_the_family_is_within_its_own_budget() -> None:
    inputs = PROBLEM.inputs()
    held = standard(inputs, CONTRACT, BF16)
    for member in family(CONTRACT, BF16):
        for name, output in zip(("o", "final_state"), member.run(inputs), strict=True):
            truth = held.exact(name)
            ratios = held.budgets[name].ratios(statistics(truth.error(output), truth, held.formats[name]))
            assert max(ratios.values()) <= 1, (member.name, name, ratios)


@pytest.mark.parametrize("size", [24, 40, 48])
def test_a_legal_kernel_outside_the_family_passes(size: int) -> None:
    outsider = Emulator("held out", replace(CONTRACT, chunk_size=size), BF16, dot=rounded_operands(BF16))
    inputs = PROBLEM.inputs()
    held = standard(inputs, CONTRACT, BF16)
    for name, output in zip(("o", "final_state"), outsider.run(inputs), strict=True):
        truth = held.exact(name)
        assert max(held.budgets[name].ratios(statistics(truth.error(output), truth, held.formats[name])).values()) <= 1


@pytest.mark.parametrize("carry", ["bf16", "fp16"])
def test_a_state_carried_in_16_bits_is_over_the_budget_of_an_fp32_carry(carry: str) -> None:
    inputs = PROBLEM.replace(T=300, gate="zero", dtype="fp32").inputs()
    declared = contract_from_name("chunk64-fp32")
    held = standard(inputs, declared, FORMATS["fp32"])
    _, final = Emulator("low carry", replace(declared, carry=FORMATS[carry]), FORMATS["fp32"]).run(inputs)
    truth = held.exact("final_state")
    assert held.budgets["final_state"].ratios(statistics(truth.error(final), truth, FORMATS["fp32"]))["rms"] > 100


def test_the_budget_is_tight() -> None:
    """Twice the error of the worst legal kernel is over budget by the rms alone."""
    inputs = PROBLEM.inputs()
    held = standard(inputs, CONTRACT, BF16)
    truth = held.exact("o")
    worst = max((truth.error(member.run(inputs)[0]) for member in family(CONTRACT, BF16)), key=lambda e: float(e.square().mean()))
    assert held.budgets["o"].ratios(statistics(1.4 * worst, truth, BF16))["rms"] > 1


def test_an_allowance_of_zero_is_met_by_zero_only() -> None:
    nothing = torch.zeros(2, 3, dtype=torch.float64)
    allowed = budget(exactly(nothing), [nothing], io=BF16, unit=BF16.unit)
    assert max(allowed.ratios(statistics(nothing, exactly(nothing), BF16)).values()) == 0
    assert allowed.ratios(statistics(nothing + 1e-30, exactly(nothing), BF16))["rms"] == float("inf")


def test_a_row_is_held_to_its_own_size() -> None:
    exact = torch.ones(100, 8, dtype=torch.float64)
    exact[0] *= 1e-6
    legal = exact * (1 + 2.0**-9)
    allowed: Budget = budget(exactly(exact), [legal], io=BF16, unit=BF16.unit)
    wiped = legal.clone()
    wiped[0] = 0
    found: ErrorStatistics = statistics(wiped - exact, exactly(exact), BF16)
    ratios = allowed.ratios(found)
    assert ratios["rms"] < 1 < ratios["row"]


def test_small_samples_get_a_margin_that_vanishes() -> None:
    assert small_sample(1) == 4
    assert small_sample(10**6) < 1.01
    assert small_sample(0) == 1


def test_a_contract_that_overflows_concludes_nothing() -> None:
    inputs = PROBLEM.replace(dtype="fp16", K=16, V=16).inputs()
    huge = replace(inputs, initial_state=inputs.state * 1e6)
    with pytest.raises(ContractOverflow, match="overflows"):
        standard(huge, contract_from_name("chunk64-fp16"), FORMATS["fp16"])
