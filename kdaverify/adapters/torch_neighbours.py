"""Neighbours of the recurrence in torch: a grouped conv1d with SiLU, a gated rms_norm."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from kdaverify.adapters.operator_kernel import shipped

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


_adapter = partial(shipped, dtypes=("fp32", "bf16", "fp16"))
SHORT_CONV: Final = _adapter(
    "short_conv", _short_conv, "torch-short-conv", contract="short-conv-stored+taps"
)
GATED_NORM: Final = _adapter("gated_rms_norm", _gated_norm, "torch-gated-norm")
