"""Kernels that normalise q and k themselves."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from oracles.inputs import Inputs

# x / sqrt(|x|^2 + eps): that of the published kernels.
EPSILON: Final = 1e-6


def stretched(x: Tensor) -> Tensor:
    """Every row of [B, T, H, K] times a power of two from 1 to 16: exact, and normalising it is
    more than nothing.

    The power follows from the row's own values, not from its place: a row stays the same row in a
    pack and alone, before and after a cut.
    """
    positive = (x > 0).sum(-1, keepdim=True)
    return x * torch.exp2((positive % 5).to(x.dtype))


def received_normalised(inputs: Inputs, *, stored: bool) -> Inputs:
    """The call that a kernel makes of stretched q and k.

    Args:
        stored: whether it keeps them, normalised, in their own type, or in registers, where they
            are not rounded.
    """
    return replace(
        inputs,
        q=_normalised(stretched(inputs.q), stored=stored),
        k=_normalised(stretched(inputs.k), stored=stored),
    )


def _normalised(x: Tensor, *, stored: bool) -> Tensor:
    wide = x.double()
    wide = wide / (wide.square().sum(-1, keepdim=True) + EPSILON).sqrt()
    return wide.to(x.dtype) if stored else wide
