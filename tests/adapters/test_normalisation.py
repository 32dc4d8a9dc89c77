"""Rows stretched by powers of two, so that normalising them in the kernel shows, and stays what it
is wherever the row stands.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kdaverify.adapters.normalisation import EPSILON, received_normalised, stretched
from tests.adapters.standins import MakeProblem


def test_a_row_is_stretched_the_same_wherever_it_stands(make_problem: MakeProblem) -> None:
    q = make_problem(T=21).inputs().q
    whole = stretched(q)
    assert torch.equal(stretched(q[:, 7:]), whole[:, 7:])
    assert torch.equal(stretched(q.flip(1)), whole.flip(1))


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_the_stretch_is_exact_and_is_not_nothing(make_problem: MakeProblem, dtype: str) -> None:
    q = make_problem(dtype=dtype, T=40, K=16).inputs().q
    powers = (stretched(q).double() / q.double()).nan_to_num(1.0)
    assert set(powers.flatten().tolist()) == {1.0, 2.0, 4.0, 8.0, 16.0}
    assert torch.equal(powers, powers[..., :1].expand_as(powers))


def test_what_the_kernel_receives_is_the_stretched_row_normalised(
    make_problem: MakeProblem,
) -> None:
    x = make_problem(key="tiny").inputs()
    wide = stretched(x.k).double()
    exact = wide / (wide.square().sum(-1, keepdim=True) + EPSILON).sqrt()
    torch.testing.assert_close(received_normalised(x, stored=False).k, exact, rtol=1e-14, atol=0)
    assert torch.equal(received_normalised(x, stored=True).k, exact.to(x.k.dtype))
    zeros = replace(x, k=torch.zeros_like(x.k))
    assert not received_normalised(zeros, stored=False).k.any()
