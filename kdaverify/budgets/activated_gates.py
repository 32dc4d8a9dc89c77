"""Gates that a kernel activates itself, as it computes them: every step in its own arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from oracles.gate_activation import GateActivation

Map = Callable[[Tensor], Tensor]
LINEAR: Final = 20.0
"""From here on kernels take the argument for its softplus: log(1 + exp(-20)) is 2e-9."""


def activated(activation: GateActivation, x: Tensor, exp: Map, keep: Map) -> Tensor:
    """g as a kernel makes it of x.

    Softplus is log(1 + exp z): 1 + exp z rounds beside 1, as it does in most kernels, which a gate
    near 0 feels as a large relative error.

    Args:
        exp: the kernel's exponential, of a tensor in the type of x.
        keep: the rounding of every other operation.
    """
    a, z = _amplitude(activation, x, exp, keep), _shifted(activation, x, keep)
    if activation.form == "bounded":
        return keep(activation.lower_bound * sigmoid(keep(a * z), exp, keep))
    # A sample of a rounding may lie below 1, of which no kernel makes a growing state.
    sums = keep(1 + keep(exp(z.clamp(max=LINEAR)))).clamp(min=1.0)
    return keep(-a * torch.where(z > LINEAR, z, keep(torch.log(sums)))).clamp(max=0.0)


def slope(activation: GateActivation, x: Tensor, exp: Map, keep: Map) -> Tensor:
    """dg / dx likewise; that of a sigmoid s is s (1 - s), of the s that was rounded."""
    a, z = _amplitude(activation, x, exp, keep), _shifted(activation, x, keep)
    if activation.form == "bounded":
        s = sigmoid(keep(a * z), exp, keep)
        return keep(keep(activation.lower_bound * a) * keep(s * keep(1 - s)))
    return keep(-a * sigmoid(z, exp, keep))


def sigmoid(x: Tensor, exp: Map, keep: Map) -> Tensor:
    """1 / (1 + exp(-x)) by exponentials of numbers <= 0, which stay in every unit's range."""
    small = keep(exp(-x.abs()))
    return keep(torch.where(x < 0, small, 1.0) / keep(1 + small))


def _amplitude(activation: GateActivation, x: Tensor, exp: Map, keep: Map) -> Tensor:
    return keep(exp(activation.A_log(x).to(x.dtype)))


def _shifted(activation: GateActivation, x: Tensor, keep: Map) -> Tensor:
    return keep(x + activation.dt_bias(x).to(x.dtype))
