"""MLX: its fast scaled_dot_product_attention, on whatever device the build has."""

from __future__ import annotations

import importlib
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from kdaverify.adapters.attention_layout import FLOATS, contracts, some_keys
from kdaverify.adapters.base import absent, versions
from kdaverify.adapters.operator_kernel import shipped


def _attention(q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool) -> Tensor:
    mx = importlib.import_module("mlx.core")

    o = mx.fast.scaled_dot_product_attention(
        *(_to_mlx(x.detach().transpose(1, 2)) for x in (q, k, v)),
        scale=softmax_scale,
        mask="causal" if causal else None,
    )
    return _from_mlx(o).transpose(1, 2)


def _to_mlx(x: Tensor) -> Any:
    # NumPy has no bf16: its bits go through as int16.
    mx = importlib.import_module("mlx.core")

    x = x.contiguous()
    if x.dtype == torch.bfloat16:
        return mx.array(x.view(torch.int16).numpy()).view(mx.bfloat16)
    return mx.array(x.numpy())


def _from_mlx(x: Any) -> Tensor:
    mx = importlib.import_module("mlx.core")

    if x.dtype == mx.bfloat16:
        return torch.from_numpy(np.array(x.view(mx.int16))).view(torch.bfloat16)
    return torch.from_numpy(np.array(x))


def _environment() -> dict[str, str]:
    mx = importlib.import_module("mlx.core")

    return {**versions("mlx"), "device": str(mx.default_device())}


ATTENTION: Final = shipped(
    "attention",
    _attention,
    "mlx-attention",
    dtypes=FLOATS,
    gradients=False,
    lse="none",
    empty_out="unspecified",
    supports=some_keys,
    contract=contracts("math-{0}[scale:q;q_scaled:{0};S:{0}]"),
    environment=_environment,
    missing=lambda: absent(("mlx",), "pip install 'mlx[cpu]'"),
)
"""On a CPU it scales q first, and stores it, scores and normalised weights in the format of q. Its
documentation has the lower-right alignment of "causal", and nothing about rows without keys.
"""
