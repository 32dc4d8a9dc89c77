"""Where many roundings average, 30 % more rms than a conforming kernel's is over tolerance; where
few roundings decide, it is not.
"""

from __future__ import annotations

import math

import pytest
import torch

from kdaverify.budgets.budget import sharp_rms, were_favourable
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.ensemble import emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.monte_carlo import MonteCarloArithmetic
from kdaverify.budgets.standard import standard
from kdaverify.problems import Problem

BF16, CONTRACT = FORMATS["bf16"], contract_from_name("chunk64-bf16")
QUIET, WIDE, SINGLE = [0.99, 1.0, 1.01, 1.0], [0.7, 0.9, 1.0, 1.2], [0.2, 0.5, 1.0, 2.0]
ORDINARY = Problem(
    B=1,
    T=96,
    H=2,
    HV=4,
    K=32,
    V=32,
    dtype="bf16",
    gate="mild",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=3,
)


def test_a_quiet_error_is_held_close_and_a_scattered_one_is_not() -> None:
    assert 1.1 < sharp_rms([0.9, 1.0], QUIET, 0.0) < 1.2
    assert 1.8 < sharp_rms([0.9, 1.0], WIDE, 0.0) < 2.2
    assert math.isinf(sharp_rms([0.9, 1.0], SINGLE, 0.0))


def test_the_worst_of_rounding_draws_and_floor_counts() -> None:
    factor = sharp_rms([1.0], QUIET, 0.0)
    assert sharp_rms([0.1], QUIET, 0.0) == factor
    assert sharp_rms([2.0, 1.0], QUIET, 0.0) == pytest.approx(2 * factor)
    assert sharp_rms([1.0], QUIET, 3.0) == pytest.approx(3 * factor)


@pytest.mark.parametrize("draws", [[0.0] * 8, [1.0, math.inf]])
def test_exact_and_overflowing_draws_say_nothing(draws: list[float]) -> None:
    assert math.isinf(sharp_rms([0.0], draws, 1.0))


def test_conforming_kernels_were_favourable_where_random_roundings_are_worse() -> None:
    assert were_favourable([0.1, 0.5], QUIET) and not were_favourable([0.5, 0.9], QUIET)
    assert not were_favourable([0.0], [0.0]), "nothing is worse than exact there"


def test_on_a_problem_of_ordinary_size_a_new_draw_passes_and_30_per_cent_more_does_not() -> None:
    inputs = ORDINARY.inputs()
    emulation = emulate(inputs, CONTRACT, BF16)
    held = standard(inputs, CONTRACT, BF16, emulation)
    truth, allowed = held.exact("o"), held.budgets["o"]
    error = truth.error(emulation.rounded["library order"][0])
    assert allowed.admits(error, truth) and not allowed.admits(1.3 * error, truth)
    for drawn, _ in MonteCarloArithmetic(CONTRACT, BF16).run(inputs, seed=99):
        assert allowed.admits(truth.error(drawn), truth)
    assert len(allowed.peers) == len(emulation.rounded)
    assert torch.tensor(allowed.peers).min() > 0


def test_an_output_scaled_by_little_is_reported_by_its_bias_where_its_rms_is_within_budget() -> (
    None
):
    inputs = ORDINARY.inputs()
    emulation = emulate(inputs, CONTRACT, BF16)
    held = standard(inputs, CONTRACT, BF16, emulation)
    truth, allowed = held.exact("final_state"), held.budgets["final_state"]
    for _, final in (
        *emulation.rounded.values(),
        *MonteCarloArithmetic(CONTRACT, BF16).run(inputs, seed=99),
    ):
        assert allowed.ratios(allowed.measure(truth.error(final), truth))["bias"] < 1
    conforming = emulation.rounded["library order"][1]
    ratios = allowed.ratios(allowed.measure(truth.error(conforming * (1 + 2.0**-9)), truth))
    assert ratios["bias"] > 1
