"""Tensors between torch and JAX, copied both ways: dlpack would alias memory and turn float64 into float32 silently."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


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
        raise TypeError(f"JAX turned {array.dtype} into {copied.dtype}; pass 32-bit or smaller types, or enable x64")
    return copied


def from_jax(array: Any) -> Tensor:
    """A torch tensor with the same values and dtype, in memory of its own."""
    if str(array.dtype) == "bfloat16":
        return torch.from_numpy(np.array(array).view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(np.array(array))
