"""Hugging Face transformers: Kimi Linear's and Qwen3-Next's short convolution and norms."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Final

from torch import Tensor

from kdaverify.adapters.base import absent, versions
from kdaverify.adapters.operator_kernel import shipped
from kdaverify.adapters.transformers_kda import torch_function

QWEN: Final = "transformers.models.qwen3_next.modeling_qwen3_next"
KIMI: Final = "transformers.models.kimi_linear.modeling_kimi_linear"


def _short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    initial_state: Tensor | None,
    activation: str | None,
) -> tuple[Tensor, Tensor]:
    """The whole sequence without a state, else the update of a cache, as the layer calls."""
    update, whole = (
        torch_function(KIMI, name) for name in ("causal_conv1d_update", "causal_conv1d_fn")
    )
    cache = (
        x.new_zeros(x.shape[0], *weight.shape) if initial_state is None else initial_state.clone()
    )
    y = update(x.mT, cache, weight, bias, activation)
    return (whole(x.mT, weight, bias, activation) if initial_state is None else y).mT, cache


def _norm_of(module: str, name: str) -> Callable[..., Tensor]:
    def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, *, eps: float) -> Tensor:
        layer = getattr(importlib.import_module(module), name)(weight.numel(), eps=eps)
        del layer.weight
        layer.weight = weight
        return type(layer).forward(layer, x, gate)

    gated_rms_norm.__qualname__ = f"{module}.{name}.forward"
    return gated_rms_norm


_adapter = functools.partial(
    shipped,
    dtypes=("fp32", "bf16", "fp16"),
    environment=lambda: versions("transformers"),
    missing=lambda: absent(("transformers",), "pip install 'kdaverify[transformers]'"),
)
SHORT_CONV: Final = _adapter(
    "short_conv", _short_conv, "transformers-short-conv", contract="short-conv-stored+taps"
)
GATED_NORM: Final = _adapter(
    "gated_rms_norm",
    _norm_of(QWEN, "Qwen3NextRMSNormGated"),
    "transformers-gated-norm",
    contract="gated-rms-norm-stored",
)
"""Qwen3-Next's, with SiLU: it rounds the normalised row, and its product with the weight."""
GATED_NORM_KIMI: Final = _adapter(
    "gated_rms_norm",
    _norm_of(KIMI, "KimiLinearRMSNormGated"),
    "transformers-gated-norm-kimi",
    activation="sigmoid",
)
"""Kimi Linear's, with a sigmoid: fp32 to its one rounding."""
