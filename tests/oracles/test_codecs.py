"""Every convention of a value, there and back, and its gradient:
with NaN padding, infinities and empty tensors.
"""

from __future__ import annotations

import math

import pytest
import torch

from oracles.codecs import BETAS, GATES, Codec

NAN, INF = math.nan, math.inf
GATE = torch.tensor([0.0, -1e-7, -0.05, -1.0, -5.0, -20.0, -700.0], dtype=torch.float64)
BETA = torch.tensor([2.0**-40, 0.1, 0.5, 0.9, 1 - 2.0**-24], dtype=torch.float64)
CODECS = [
    *((codec, GATE) for codec in GATES.values()),
    *((codec, BETA) for codec in BETAS.values()),
]


@pytest.mark.parametrize(("codec", "values"), CODECS)
def test_there_and_back_is_the_value_itself(codec: Codec, values: torch.Tensor) -> None:
    torch.testing.assert_close(codec.back(codec.there(values)), values, rtol=1e-9, atol=2e-16)


@pytest.mark.parametrize(("codec", "values"), CODECS)
def test_the_slope_is_the_derivative_of_the_way_back(codec: Codec, values: torch.Tensor) -> None:
    received = codec.there(values).requires_grad_()
    (derivative,) = torch.autograd.grad(codec.back(received).sum(), received)
    torch.testing.assert_close(codec.slope(received.detach()), derivative, rtol=1e-12, atol=0.0)


@pytest.mark.parametrize(("codec", "values"), CODECS)
def test_poison_stays_poison_and_nothing_stays_nothing(codec: Codec, values: torch.Tensor) -> None:
    del values
    poison = torch.tensor([NAN], dtype=torch.float64)
    assert codec.there(poison).isnan().all() and codec.back(poison).isnan().all()
    assert codec.there(torch.zeros(0)).shape == codec.back(torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize(
    ("codec", "value", "received"),
    [
        (GATES["log2"], -INF, -INF),
        (GATES["decay"], -INF, 0.0),
        (BETAS["logit"], 0.0, -INF),
        (BETAS["logit"], 1.0, INF),
    ],
)
def test_the_ends_of_a_domain_are_exact(codec: Codec, value: float, received: float) -> None:
    there = codec.there(torch.tensor([value], dtype=torch.float64))
    assert there.item() == received and codec.back(there).item() == value


def test_the_slope_of_a_saturated_sigmoid_is_zero_and_that_of_a_zero_decay_is_none() -> None:
    assert BETAS["logit"].slope(torch.tensor([-INF, INF])).tolist() == [0.0, 0.0]
    assert not torch.isfinite(GATES["decay"].slope(torch.zeros(1))).any()
