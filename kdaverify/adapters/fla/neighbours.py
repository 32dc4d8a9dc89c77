"""flash-linear-attention's neighbours of the recurrence: short convolution, gated RMSNorm."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import NOTHING_YET, versions
from kdaverify.adapters.fla.runtime import fixed, missing, native, runtime
from kdaverify.adapters.operator_kernel import shipped

CONV: Final = "fla.modules.causal_conv1d.ops"
NORM: Final = "fla.modules.norm.fused_norm_gate"
NAMES: Final = {"silu": "swish", "sigmoid": "sigmoid"}
_RAN: Final[list[str]] = [NOTHING_YET]


def watched(dtype: torch.dtype, call: Callable[[], Any]) -> Any:
    """What a call returns; which kernels it launched is remembered."""
    kernels = runtime("cuda", fixed("cuda"), dtype)
    kernels.forget()
    returned = call()
    _RAN[0] = (
        ", ".join(name.removeprefix("fla.modules.") for name in kernels.kernels_run())
        or "no kernel"
    )
    return returned


def _short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    activation: str | None,
) -> tuple[Tensor, Tensor]:
    def call() -> tuple[Tensor, Tensor]:
        return importlib.import_module(CONV).causal_conv1d(
            x,
            weight,
            bias,
            None,
            initial_state,
            output_final_state=True,
            activation=activation,
            backend="triton",
            cu_seqlens=cu_seqlens,
        )

    return watched(x.dtype, call)


def _step(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    activation: str | None,
) -> tuple[Tensor, Tensor]:
    """One token of every sequence; the cache is edited in place, so it is a copy."""
    del cu_seqlens
    D, W = weight.shape
    cache = x.new_zeros(x.numel() // D, D, W) if initial_state is None else initial_state.clone()

    def call() -> tuple[Tensor, Tensor]:
        return importlib.import_module(CONV).causal_conv1d_update(
            x, cache, None, weight, bias, activation
        )

    return watched(x.dtype, call)


def _gated_norm(x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str) -> Tensor:
    def call() -> Tensor:
        function = importlib.import_module(NORM).rms_norm_gated
        return function(x, gate, weight, None, NAMES[activation], eps=eps)

    return watched(x.dtype, call)


def last_run() -> str:
    """The kernels that the last call launched."""
    return _RAN[0]


def mode() -> str:
    """Where kernels run on this machine."""
    return "native" if native("cuda") else "interpreted"


_adapter = functools.partial(
    shipped,
    dtypes=("fp32", "bf16", "fp16"),
    device="cuda" if torch.cuda.is_available() else "cpu",
    isolate=True,  # its kernels can take their process with them
    proof=last_run,
    environment=lambda: {**versions("fla-core", "triton"), "mode": mode()},
    missing=lambda: missing("cuda", "pip install 'kdaverify[fla]'"),
)
FLA_SHORT_CONV: Final = _adapter(
    "short_conv", _short_conv, "fla-short-conv", packing="cu_seqlens", step=_step
)
FLA_GATED_NORM: Final = _adapter("gated_rms_norm", _gated_norm, "fla-gated-norm")
