"""Sigmoids and exponentials of an accelerator are within the tolerance of a contract that receives
logits, or log decays, even of one token alone; cruder ones are not.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.ensemble import emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.standard import standard
from kdaverify.problems import Problem
from kdaverify.problems.axes import Dtype
from oracles.codecs import BETAS
from oracles.recurrence import recurrence

CONTRACT = replace(contract_from_name("recurrent-fp32"), beta="logit")
SEEDS = range(12)


def ratio(dtype: Dtype, seed: int, error: float) -> float:
    """How far S_T of one token and head fills its tolerance, where the sigmoid of a float32 kernel
    errs by so much.
    """
    problem = Problem(
        B=1, T=1, H=1, HV=1, K=8, V=8, dtype=dtype, seed=seed,
        gate="log-sigmoid", key="random", beta="uniform", state="absent", value="normal",
    )  # fmt: skip
    io, inputs = FORMATS[dtype], problem.inputs()
    logit = io.round(BETAS["logit"].there(inputs.beta.double()))
    exact = replace(inputs, beta=torch.sigmoid(logit))
    reference = standard(exact, CONTRACT, io, emulate(exact, CONTRACT, io))
    sigmoid = (torch.sigmoid(logit) * (1 + error)).float()
    found = recurrence(replace(exact, beta=sigmoid))[1].float().double()
    truth, allowed = reference.exact("final_state"), reference.budgets["final_state"]
    return max(allowed.ratios(allowed.measure(found - truth.high, truth)).values())


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("error", [3.3 * 2**-24, -3.3 * 2**-24])
def test_an_approximate_sigmoid_is_within(dtype: Dtype, error: float) -> None:
    assert max(ratio(dtype, seed, error) for seed in SEEDS) <= 1


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_one_of_eighteen_bits_is_not(dtype: Dtype) -> None:
    assert min(ratio(dtype, seed, 2**-18) for seed in SEEDS) > 1


def decayed(seed: int, error: float) -> float:
    """The same of an exponential, where a token and a head have one gate."""
    problem = Problem(
        B=1, T=1, H=1, HV=1, K=32, V=32, dtype="fp32", seed=seed, gates="head",
        gate="log-sigmoid", key="random", beta="uniform", state="random", value="normal",
    )  # fmt: skip
    io, inputs, contract = FORMATS["fp32"], problem.inputs(), contract_from_name("recurrent-fp32")
    reference = standard(inputs, contract, io, emulate(inputs, contract, io))
    off = inputs.g.double() + math.log1p(error)
    found = recurrence(replace(inputs, g=off))[1].float().double()
    truth, allowed = reference.exact("final_state"), reference.budgets["final_state"]
    return max(allowed.ratios(allowed.measure(found - truth.high, truth)).values())


@pytest.mark.parametrize("error", [2.0**-22, -(2.0**-22)])
def test_an_exponential_may_be_off_by_four_roundoffs_where_all_channels_share_it(
    error: float,
) -> None:
    assert max(decayed(seed, error) for seed in SEEDS) <= 1


def test_a_cruder_exponential_is_over_tolerance() -> None:
    assert min(decayed(seed, 2.0**-19) for seed in SEEDS) > 1
