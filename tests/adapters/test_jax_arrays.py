"""A JAX function stands in torch's graph with its own VJP, in every dtype that JAX keeps."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from kdaverify.adapters.jax_arrays import from_jax, through_jax, to_jax

jax = pytest.importorskip("jax")
pytest.importorskip("ml_dtypes")


def product(x: Any, y: Any) -> tuple[Any, Any]:
    return x * y, x.sum()


def vjp(arrays: Any, cotangents: Any) -> Any:
    return jax.vjp(product, *arrays)[1](cotangents)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_its_derivatives_are_those_of_jax_and_torch_goes_on_from_them(dtype: torch.dtype) -> None:
    x, y = (
        torch.tensor([1.5, -2.0], dtype=dtype, requires_grad=True),
        torch.tensor([4.0, 0.5], dtype=dtype, requires_grad=True),
    )
    out, total = through_jax(product, vjp, 2 * x, y)
    assert (out.dtype, out.tolist(), total.item()) == (dtype, [12.0, -2.0], -1.0)
    dx, dy = torch.autograd.grad(
        [out, total], [x, y], [torch.ones_like(out), torch.tensor(0.5, dtype=dtype)]
    )
    assert (dx.tolist(), dy.tolist()) == ([9.0, 2.0], [3.0, -4.0])


def test_an_output_that_no_loss_depends_on_has_a_cotangent_of_zeros() -> None:
    x, y = torch.ones(2, requires_grad=True), torch.full((2,), 3.0)
    out, _ = through_jax(product, vjp, x, y)
    (dx,) = torch.autograd.grad(out.sum(), x)
    assert dx.tolist() == [3.0, 3.0]


def test_without_a_graph_nothing_is_differentiated() -> None:
    def never(*_: Any) -> Any:
        raise AssertionError("no derivative was requested")

    out, _ = through_jax(product, never, torch.ones(2), torch.ones(2))
    assert not out.requires_grad
    assert torch.equal(from_jax(to_jax(out)), out)
