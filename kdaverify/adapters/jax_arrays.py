"""Tensors between torch and JAX, copied: dlpack would alias memory and narrow float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kdaverify.adapters.custom_vjp import with_vjp


def to_jax(tensor: Tensor) -> Any:
    """A JAX array with the same values and dtype, in memory of its own.

    Raises:
        TypeError: JAX would have changed the dtype (64-bit types without x64).
    """
    import jax.numpy as jnp
    import ml_dtypes

    tensor = tensor.detach().contiguous()
    half = tensor.dtype == torch.bfloat16
    array = tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16) if half else tensor.numpy()
    copied = jnp.array(array, copy=True)
    if copied.dtype != array.dtype:
        raise TypeError(
            f"JAX turned {array.dtype} into {copied.dtype}; pass 32-bit or smaller types, or"
            " enable x64"
        )
    return copied


def from_jax(array: Any) -> Tensor:
    """A torch tensor with the same values and dtype, in memory of its own."""
    if str(array.dtype) == "bfloat16":
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))


def through_jax(
    forward: Callable[..., Sequence[Any]], vjp: Callable[..., Sequence[Any]], *tensors: Tensor
) -> tuple[Tensor, ...]:
    """What a JAX function makes of torch tensors, in torch's graph.

    JAX keeps 64-bit types during a call with float64 tensors, whatever it does otherwise.

    Args:
        forward: takes the arrays, returns the outputs.
        vjp: takes tuples of arrays and of cotangents, returns a cotangent of every array.
    """

    def call(*given: Tensor) -> tuple[Tensor, ...]:
        with _types(given):
            return tuple(from_jax(output) for output in forward(*map(to_jax, given)))

    def back(given: Sequence[Tensor], cotangents: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with _types(given):
            return tuple(
                from_jax(found)
                for found in vjp(tuple(map(to_jax, given)), tuple(map(to_jax, cotangents)))
            )

    return with_vjp(call, back, *tensors)


def _types(tensors: Sequence[Tensor]) -> AbstractContextManager[Any]:
    """JAX's 64-bit types where a tensor has one."""
    import jax

    if any(tensor.dtype == torch.float64 for tensor in tensors):
        return jax.enable_x64()
    return nullcontext()
