"""The tolerance admits every conforming kernel, also those it was not computed from, and notices a
tenth more error than they make.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kdaverify.budgets import budget as module
from kdaverify.budgets.budget import Budget, budget, spread
from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.budgets.emulate import RESIDUAL, ROWWISE, Emulator
from kdaverify.budgets.ensemble import ContractOverflow, emulate, ensemble
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.standard import Reference
from kdaverify.budgets.standard import standard as standard_of
from kdaverify.budgets.statistics import ErrorStatistics, rms, statistics
from kdaverify.problems import Problem
from oracles.enclosure import Enclosure
from oracles.inputs import Inputs

PROBLEM = Problem(
    B=1,
    T=130,
    H=2,
    HV=2,
    K=32,
    V=48,
    dtype="bf16",
    gate="slow",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=5,
)
CONTRACT = contract_from_name("chunk64-bf16")
BF16 = FORMATS["bf16"]


def standard(inputs: Inputs, contract: Contract, io: Format) -> Reference:
    return standard_of(inputs, contract, io, emulate(inputs, contract, io))


def exactly(value: torch.Tensor) -> Enclosure:
    nothing = torch.zeros_like(value)
    return Enclosure(value, nothing, nothing, value == 0)


def test_every_member_of_the_ensemble_is_within_its_own_budget() -> None:
    inputs = PROBLEM.inputs()
    held = standard(inputs, CONTRACT, BF16)
    for member in ensemble(CONTRACT, BF16):
        for name, output in zip(("o", "final_state"), member.run(inputs), strict=True):
            truth = held.exact(name)
            ratios = held.budgets[name].ratios(
                held.budgets[name].measure(truth.error(output), truth)
            )
            assert max(ratios.values()) <= 1, (member.name, name, ratios)


@pytest.mark.parametrize("size", [24, 40, 64])
def test_a_conforming_kernel_outside_the_ensemble_passes(size: int) -> None:
    contract = replace(CONTRACT, chunk_size=size)
    outsider = Emulator("held out", contract, BF16, stages=replace(RESIDUAL, solve=ROWWISE.solve))
    inputs = PROBLEM.inputs()
    held = standard(inputs, contract, BF16)
    for name, output in zip(("o", "final_state"), outsider.run(inputs), strict=True):
        truth = held.exact(name)
        assert (
            max(
                held.budgets[name]
                .ratios(held.budgets[name].measure(truth.error(output), truth))
                .values()
            )
            <= 1
        )


@pytest.mark.parametrize("carry", ["bf16", "fp16"])
def test_a_state_carried_in_16_bits_is_over_the_budget_of_an_fp32_carry(carry: str) -> None:
    inputs = PROBLEM.replace(T=300, gate="zero", dtype="fp32").inputs()
    declared = contract_from_name("chunk64-fp32")
    held = standard(inputs, declared, FORMATS["fp32"])
    _, final = Emulator("low carry", replace(declared, carry=FORMATS[carry]), FORMATS["fp32"]).run(
        inputs
    )
    truth = held.exact("final_state")
    assert (
        held.budgets["final_state"].ratios(
            held.budgets["final_state"].measure(truth.error(final), truth)
        )["rms"]
        > 100
    )


def test_the_budget_is_tight() -> None:
    """Twice the error of the worst conforming kernel is over tolerance by the rms alone."""
    inputs = PROBLEM.inputs()
    held = standard(inputs, CONTRACT, BF16)
    truth = held.exact("o")
    worst = max(
        (truth.error(member.run(inputs)[0]) for member in ensemble(CONTRACT, BF16)),
        key=lambda e: float(e.square().mean()),
    )
    assert held.budgets["o"].ratios(held.budgets["o"].measure(1.4 * worst, truth))["rms"] > 1


def test_an_allowance_of_zero_is_met_by_zero_only() -> None:
    nothing = torch.zeros(2, 3, dtype=torch.float64)
    allowed = budget(exactly(nothing), [nothing], [nothing] * 2, io=BF16, unit=BF16.unit, lost=0.0)
    assert max(allowed.ratios(statistics(nothing, exactly(nothing), BF16)).values()) == 0
    assert allowed.ratios(statistics(nothing + 1e-30, exactly(nothing), BF16))["rms"] == float(
        "inf"
    )


def test_a_row_is_held_to_its_own_size() -> None:
    exact = torch.ones(100, 8, dtype=torch.float64)
    exact[0] *= 1e-6
    conforming = exact * (1 + 2.0**-9)
    allowed: Budget = budget(
        exactly(exact), [conforming], [conforming] * 2, io=BF16, unit=BF16.unit, lost=0.0
    )
    wiped = conforming.clone()
    wiped[0] = 0
    found: ErrorStatistics = statistics(wiped - exact, exactly(exact), BF16)
    ratios = allowed.ratios(found)
    assert ratios["rms"] < 1 < ratios["row"]


def test_a_row_of_a_state_whose_past_has_decayed_is_held_to_what_is_left() -> None:
    inputs = PROBLEM.replace(gate="bound-5").inputs()
    emulation = emulate(inputs, CONTRACT, BF16)
    held = standard_of(inputs, CONTRACT, BF16, emulation)
    truth, allowed = held.exact("final_state"), held.budgets["final_state"]
    conforming, *others = (
        truth.error(run[1]) for run in (*emulation.rounded.values(), *emulation.drawn)
    )
    wrong = conforming.clone()
    wrong[0, 1, 7] *= 4 * max(rms(other[0, 1, 7]) for other in others) / rms(conforming[0, 1, 7])
    assert (
        allowed.ratios(allowed.measure(conforming, truth))["row"]
        < 1
        < allowed.ratios(allowed.measure(wrong, truth))["row"]
    )


def test_the_margin_is_wide_for_a_single_rounding_and_narrow_for_many() -> None:
    rng = torch.Generator().manual_seed(0)
    exact = exactly(torch.ones(50, 40, dtype=torch.float64))
    single = [torch.rand(1, generator=rng, dtype=torch.float64).expand(50, 40) for _ in range(8)]
    many = [torch.rand(50, 40, generator=rng, dtype=torch.float64) for _ in range(8)]
    wide, narrow = (
        spread([statistics(draw, exact, BF16) for draw in draws]) for draws in (single, many)
    )
    assert wide.rms > 1.8
    assert narrow.rms < 1.1


def rows_over_budget(conforming: int) -> int:
    """How many of so many conforming runs have a row over tolerance,
    where every row hangs on a single rounding.
    """
    rng = torch.Generator().manual_seed(0)
    exact = torch.ones(8000, 8, dtype=torch.float64)
    sizes = torch.logspace(-6, -3, 8000, dtype=torch.float64)[:, None]

    def run() -> torch.Tensor:
        return exact + sizes * torch.randn(8000, 1, dtype=torch.float64, generator=rng)

    held = budget(
        exactly(exact),
        [run(), run()],
        [run() for _ in range(8)],
        io=FORMATS["fp64"],
        unit=0.0,
        lost=0.0,
    )
    found = [held.measure(run() - exact, exactly(exact)) for _ in range(conforming)]
    return sum(bool((held.row_ratios(one) > 1).any()) for one in found)


def untypical(draws: list[ErrorStatistics]) -> torch.Tensor:
    return torch.zeros_like(draws[0].rows)


def test_no_row_is_held_to_the_variation_it_had_in_all_of_the_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = rows_over_budget(100)
    monkeypatch.setattr(module, "_typical_rows", untypical)
    assert rows_over_budget(100) > 3 * own


def test_a_contract_that_overflows_concludes_nothing() -> None:
    inputs = PROBLEM.replace(dtype="fp16", K=16, V=16).inputs()
    huge = replace(inputs, initial_state=inputs.state * 1e6)
    with pytest.raises(ContractOverflow, match="overflow on this problem"):
        standard(huge, contract_from_name("chunk64-fp16"), FORMATS["fp16"])
