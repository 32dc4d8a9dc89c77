"""JAX's attention is compiled whole, and returns what it returns operation by operation."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from kdaverify.adapters import jax_attention

jax = pytest.importorskip("jax")
np = pytest.importorskip("numpy")

pytestmark = pytest.mark.whole_run


def _tensors(dtype: str, heads: int, width: int) -> tuple[Any, ...]:
    draw = np.random.default_rng(0).standard_normal
    shapes = ((2, 5, heads, width), (2, 7, 1, width), (2, 7, 1, width))
    return tuple(jax.numpy.asarray(draw(shape), dtype) for shape in shapes)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(("heads", "width"), [(4, 8), (1, 1)])
def test_its_program_has_the_bits_of_its_operations(dtype: str, heads: int, width: int) -> None:
    q, k, v = _tensors(dtype, heads, width)
    own, lse = jax.nn.dot_product_attention(
        q, k, v, scale=0.3, is_causal=True, **jax_attention.NN_OPTIONS
    )
    found = jax_attention.NN(q, k, v, softmax_scale=0.3, causal=True)
    assert [x.dtype for x in found] == [q.dtype] * 2
    assert (found[0] == own).all() and (found[1] == lse.swapaxes(1, 2)).all()


def test_its_gradients_are_those_of_its_operations() -> None:
    given = _tensors("float32", 4, 8)
    attend: Any = functools.partial(jax_attention.NN, softmax_scale=0.3, causal=True)
    o, pull = jax.vjp(attend, *given)
    plain = functools.partial(
        jax.nn.dot_product_attention, scale=0.3, is_causal=True, implementation="xla"
    )
    wanted = jax.vjp(plain, *given)[1](o[0])
    for found, exact in zip(pull((o[0], jax.numpy.zeros_like(o[1]))), wanted, strict=True):
        assert np.allclose(found, exact, rtol=1e-5, atol=1e-6)
