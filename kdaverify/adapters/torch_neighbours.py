"""Neighbours of the recurrence in torch: a grouped conv1d with SiLU, a gated rms_norm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from kdaverify.adapters.frameworks import FRAMEWORKS
from kdaverify.adapters.operator_kernel import FunctionAdapter, operator_kernel

ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "silu": functional.silu,
    "sigmoid": torch.sigmoid,
}


def _short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    initial_state: Tensor | None,
    activation: str | None,
) -> tuple[Tensor, Tensor]:
    """In the type of x, the pre-activation stored."""
    D, W = weight.shape
    before = x.new_zeros(x.shape[0], D, W) if initial_state is None else initial_state
    stream = torch.cat((before, x.mT), 2)
    z = functional.conv1d(stream[..., 1:], weight[:, None], bias, groups=D).mT
    return (z if activation is None else ACTIVATIONS[activation](z)), stream[..., -W:].clone()


def _gated_norm(x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str) -> Tensor:
    """In fp32 to the one rounding of the result."""
    normed = functional.rms_norm(x.float(), weight.shape, weight.float(), eps)
    return (normed * ACTIVATIONS[activation](gate.float())).to(x.dtype)


def _adapter(op: str, function: Callable[..., Any], name: str, **options: Any) -> FunctionAdapter:
    return operator_kernel(
        op,
        function,
        {"name": name, "dtypes": ("fp32", "bf16", "fp16"), **options},
        FRAMEWORKS["torch"],
    )


SHORT_CONV: Final = _adapter(
    "short_conv", _short_conv, "torch-short-conv", contract="short-conv-stored"
)
GATED_NORM: Final = _adapter("gated_rms_norm", _gated_norm, "torch-gated-norm")
