"""Rows that a kernel normalises itself: what it gets, what that stands for, and its gradient."""

from __future__ import annotations

import pytest
import torch

from oracles.row_norm import RowNorm, norm_of

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def rows(dtype: torch.dtype) -> torch.Tensor:
    """[B, T, H, K] unit rows, one of them 0 and one tiny, in a format."""
    x = torch.randn(2, 5, 6, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    x = x / x.norm(dim=-1, keepdim=True)
    x[0, 1], x[0, 2] = 0.0, x[0, 2] * 2.0**-13
    return x.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_kernel_gets_rows_of_other_lengths(dtype: str) -> None:
    given = rows(DTYPES[dtype])
    x = RowNorm().there(given.double())
    ratio = (x / given.double())[1]
    assert set(ratio.flatten().tolist()) == {4.0, 2.0**-9, 2.0, 2.0**-7, 8.0}
    assert torch.equal(RowNorm().there(given[:, :, :2].double()), x[:, :, :2])
    assert torch.equal(x[:, 3:], RowNorm().there(given[:, 3:].double()))
    assert torch.equal(RowNorm().there(-given.double()), -x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("eps", [1e-6, 1e-5])
def test_x_is_found_again_from_its_normalised_row(dtype: str, eps: float) -> None:
    norm = RowNorm(eps)
    x = norm.there(rows(DTYPES[dtype]).double()).to(DTYPES[dtype]).double()
    found, rate = norm.rows(norm.normalised(x))
    assert torch.equal(found, x)
    exact = 1 / (x.square().sum(-1, keepdim=True) + eps).sqrt()
    torch.testing.assert_close(rate, exact, rtol=1e-14, atol=0)


def test_the_gradient_is_that_of_torch() -> None:
    norm = RowNorm()
    x = norm.there(rows(torch.float32).double()).requires_grad_()
    dy = torch.randn(x.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    (exact,) = torch.autograd.grad(x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt(), x, dy)
    y = norm.normalised(x.detach())
    found = norm.gradient(dy, y, norm.rows(y)[1])
    torch.testing.assert_close(found, exact, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("norm", [RowNorm(), RowNorm(1e-5, stored=True)])
def test_a_name_says_it_all(norm: RowNorm) -> None:
    assert norm_of(norm.name) == norm


def test_other_names_are_refused() -> None:
    assert norm_of("given") is None
    with pytest.raises(ValueError, match="qk: wanted given, l2norm or l2norm-stored, got 'unit'"):
        norm_of("unit")
    with pytest.raises(ValueError, match="norm_eps: wanted a positive number, got 0"):
        RowNorm(0.0)
