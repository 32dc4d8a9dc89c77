"""Sigmoids of an accelerator are within the tolerance of a contract that receives logits, even of
one beta alone; cruder ones are not.
"""

from __future__ import annotations

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
