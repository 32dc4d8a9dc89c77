"""vLLM's neighbours of the recurrence: short convolution over a pool of states, gated RMSNorms."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.operator_kernel import FunctionAdapter
from kdaverify.adapters.vllm_delta import OPS
from kdaverify.adapters.vllm_package import adapter_of, missing, watched

MAMBA: Final = "model_executor.layers.mamba.ops"
CONV: Final = f"{MAMBA}.causal_conv1d"
Norm = Callable[..., Tensor]


def _pool(x: Tensor, weight: Tensor, state: Tensor | None, sequences: int) -> Tensor:
    """As serving has it: states after slot 0, which is that of no sequence, channels last."""
    D, W = weight.shape
    pool = x.new_full((1 + sequences, W - 1, D), torch.nan).mT
    if state is not None:
        pool[1:] = state
    return pool


def _short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    activation: str | None,
) -> tuple[Tensor, Tensor]:
    B, T, D = x.shape
    offsets = cu_seqlens
    if offsets is None:
        offsets = torch.arange(B + 1, dtype=torch.int32, device=x.device) * T
    lengths, N = offsets.diff(), len(offsets) - 1
    pool = _pool(x, weight, initial_state, N)
    if initial_state is None:
        pool[1:][lengths == 0] = 0  # nothing is written where nothing comes
    y = watched(
        CONV,
        x.dtype,
        lambda module: module.causal_conv1d_fn(
            x.reshape(B * T, D).mT,
            weight,
            bias,
            pool,
            offsets,
            cache_indices=torch.arange(1, N + 1, dtype=torch.int32, device=x.device),
            has_initial_state=torch.full((N,), initial_state is not None, device=x.device),
            activation=activation,
        ),
    )
    return y.mT.reshape(B, T, D), pool[1:]


def step(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    activation: str | None,
) -> tuple[Tensor, Tensor]:
    """One token of every sequence; the input would be written over without `out`."""
    del cu_seqlens
    x = x[:, 0]
    before = torch.zeros((), dtype=x.dtype, device=x.device)
    pool = _pool(x, weight, before if initial_state is None else initial_state, len(x))
    y = watched(
        CONV,
        x.dtype,
        lambda module: module.causal_conv1d_update(
            x,
            pool,
            weight,
            bias,
            activation,
            conv_state_indices=torch.arange(1, len(x) + 1, dtype=torch.int32, device=x.device),
            out=torch.empty_like(x),
        ),
    )
    return y[:, None], pool[1:]


def _kimi(module: ModuleType, x: Tensor, gate: Tensor, weight: Tensor, **words: Any) -> Tensor:
    """y is written over x, which the layer does not read again: a copy of x is handed over."""
    return module.rms_norm_gated(x.clone(), gate, weight, None, **words)


def _qwen(module: ModuleType, x: Tensor, gate: Tensor, weight: Tensor, **words: Any) -> Tensor:
    return module.rmsnorm_fn(x, weight, None, z=gate, **words)


def _mamba(x: Tensor, gate: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    given = {"z": gate, "eps": eps, "norm_before_gate": False}
    norm = f"{MAMBA}.layernorm_gated"
    return watched(norm, x.dtype, lambda module: module.rms_norm_gated(x, weight, None, **given))


SHORT_CONV: Final = adapter_of(
    "short_conv",
    _short_conv,
    "vllm-short-conv",
    packing="cu_seqlens",
    conv_state="W-1",
    widths=(2, 3, 4),
    step=step,
)


def _norm(name: str, place: str, norm: Norm, *beside: str) -> FunctionAdapter:
    def gated(x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str) -> Tensor:
        given = {"eps": eps, "activation": activation}
        return watched(place, x.dtype, lambda module: norm(module, x, gate, weight, **given))

    return adapter_of("gated_rms_norm", gated, name, missing=lambda: missing(*beside))


KIMI_NORM: Final = _norm("vllm-gated-norm-kimi", f"{OPS}.kda", _kimi)
QWEN_NORM: Final = _norm("vllm-gated-norm-qwen", f"{OPS}.layernorm_guard", _qwen, "einops")
MAMBA_NORM: Final = adapter_of(
    "gated_rms_norm", _mamba, "vllm-gated-norm-mamba", first="gate", activation="silu"
)
