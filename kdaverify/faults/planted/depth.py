"""Kernels that change finite gates far below -1e4, or leave out what is next to 0, and right ones
that saturate there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.faults.fault import with_gradient
from kdaverify.faults.planted.broken_calls import Outputs, decoding, port, right
from oracles.inputs import Inputs

FIXED_POINT: Final = 2.0**15
LONG_FIXED_POINT: Final = 2.0**19
SENTINEL: Final = -6e4
DEEPEST: Final = -1e6
NEXT_TO_0: Final = 2.0**-19
SMALL: Final = 2.0**-9
SMALLEST_DIVISOR: Final = 1e-5


def _given(change: Callable[[Tensor], Tensor]) -> Callable[[], Adapter]:
    return lambda: port(
        lambda x, _: right(replace(x, g=torch.where(x.g.isneginf(), x.g, change(x.g))))
    )


def _wrapped(g: Tensor, limit: float) -> Tensor:
    """Bits before the point that overflow, as an integer has them."""
    return torch.where(g < -limit, ((g + limit) % (2 * limit) - limit).clamp(max=0.0), g)


def _without_gates_next_to_0(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Where all gates are next to 0 the variant without gates runs."""
    return right(replace(x, g=torch.zeros_like(x.g)) if bool((x.g > -NEXT_TO_0).all()) else x)


def _without_small_writes(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Where all betas are small nothing is written."""
    return right(x if bool((x.beta > SMALL).any()) else replace(x, beta=torch.zeros_like(x.beta)))


def _divided_by_beta(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """dbeta is what a token writes over beta, which is at least 1e-5 there unless it is 0."""
    floor = torch.tensor(SMALLEST_DIVISOR, dtype=x.beta.dtype)
    lost = torch.where(x.beta > 0, x.beta / torch.maximum(x.beta, floor), 1.0).to(x.beta.dtype)
    return right(replace(x, beta=with_gradient(lambda dbeta: dbeta * lost, x.beta)))


DEEP: Final[dict[str, Callable[[], Adapter]]] = {
    "gates wrap in fixed point of 16 bits": _given(lambda g: _wrapped(g, FIXED_POINT)),
    "gates wrap in fixed point of 20 bits": _given(lambda g: _wrapped(g, LONG_FIXED_POINT)),
    "gates below a sentinel are padding": _given(lambda g: g.masked_fill(g < SENTINEL, 0.0)),
    "gates below a million are padding": _given(lambda g: g.masked_fill(g <= DEEPEST, 0.0)),
}
NEAR_0: Final[dict[str, Callable[[], Adapter]]] = {
    "gates next to 0 are left out": lambda: port(_without_gates_next_to_0),
    "small writes are left out": lambda: port(_without_small_writes),
}
OF_STEPS: Final[dict[str, Callable[[], Adapter]]] = {
    "a decode step leaves out gates next to 0": lambda: decoding(_without_gates_next_to_0),
}
OF_GRADIENTS: Final[dict[str, Callable[[], Adapter]]] = {
    "dbeta is divided by a beta of at least 1e-5": lambda: port(_divided_by_beta),
}
FAULTS: Final = DEEP | NEAR_0 | OF_STEPS | OF_GRADIENTS
"""By what is wrong."""
RIGHT: Final[dict[str, Callable[[], Adapter]]] = {
    "gates saturate in fixed point of 16 bits": _given(lambda g: g.clamp(min=-FIXED_POINT)),
    "gates saturate in fixed point of 20 bits": _given(lambda g: g.clamp(min=-LONG_FIXED_POINT)),
    "gates saturate at a sentinel": _given(lambda g: g.clamp(min=SENTINEL)),
    "gates below a million are resets": _given(lambda g: g.masked_fill(g <= DEEPEST, -torch.inf)),
}
