"""Truncation: what is cut off is cut towards zero, and never more than the last bit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from kdaverify.budgets import accelerator
from kdaverify.budgets.accelerator import exp_approximate, exp_of_vectors, exp_short, toward_zero
from kdaverify.budgets.formats import truncate_fp32, truncate_tf32

X = torch.randn(4096, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_toward_zero_is_the_nearest_fp32_that_is_not_larger() -> None:
    cut = toward_zero(X).double()
    assert bool((cut.abs() <= X.abs()).all()) and bool((cut * X >= 0).all())
    assert bool(
        (torch.nextafter(cut.float(), X.sign().float() * torch.inf).double().abs() > X.abs()).all()
    )
    assert torch.equal(toward_zero(X.float().double()), X.float())


def test_products_below_the_last_bit_are_lost_one_by_one_whatever_their_sign() -> None:
    total = torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0])
    last = 2.0**-23
    products = torch.tensor(
        [
            [last / 4] * 8,
            [-last / 4] * 8,
            [-last] + [0.0] * 7,
            [2.0**-60] + [0.0] * 7,
            [1.75 * last] * 8,
        ]
    ).double()
    added = accelerator._added(total, products)  # pyright: ignore[reportPrivateUsage]
    assert added.tolist() == [1.0, 1.0, 1.0 - last, 2.0**-60, 1.0 + 8 * last]


@pytest.mark.parametrize("unit", [exp_approximate, exp_of_vectors, exp_short])
def test_approximate_exponentials_are_within_their_bound(unit: Callable[[Tensor], Tensor]) -> None:
    x = -10 * X.abs().float()
    error = (unit(x).double() / x.double().exp() - 1).abs()
    rounding_of_the_argument = 1.0 + x.abs().max().item()
    assert 2.0**-24 < float(error.max()) < rounding_of_the_argument * 2.0**-22
    assert float(unit(torch.zeros(()))) == 1.0
    assert float(unit(torch.tensor(-torch.inf))) == 0.0


def test_truncating_drops_bits_and_nothing_else() -> None:
    x = X.float()
    for cut in (truncate_tf32(x), truncate_fp32(x, bits=13)):
        assert bool((cut.abs() <= x.abs()).all()) and not bool(
            (cut.view(torch.int32) & 0x1FFF).any()
        )
    assert torch.equal(truncate_fp32(x, bits=0), x)
