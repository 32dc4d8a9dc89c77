"""A small layer in torch, and the fault that the laws of layers rest on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.faults.fault import Fault

WIDTH: Final = 16
EVERY: Final = ("fp32", "bf16", "fp16")
Layer = Callable[[Tensor], Tensor]


def _weight(name: int) -> Tensor:
    """Numbers of bfloat16, so that every format has the same weights."""
    drawn = torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(name))
    return (drawn / WIDTH**0.5).bfloat16()


INPUT, GATE, OUTPUT = map(_weight, (1, 2, 3))


def token_by_token(hidden: Tensor) -> Tensor:
    """Math: S_t = g_t S_{t-1} + (1 - g_t) W_i h_t, out_t = W_o S_t, g = sigmoid(W_g h)."""
    gates, inputs = torch.sigmoid(hidden @ GATE.to(hidden)), hidden @ INPUT.to(hidden)
    state, states = torch.zeros_like(hidden[:, 0]), list[Tensor]()
    for gate, row in zip(gates.unbind(1), inputs.unbind(1), strict=True):
        state = gate * state + (1 - gate) * row
        states.append(state)
    return torch.stack(states, 1) @ OUTPUT.to(hidden)


def by_products(hidden: Tensor) -> Tensor:
    """The same by decays between pairs of tokens."""
    gates, inputs = torch.sigmoid(hidden @ GATE.to(hidden)), hidden @ INPUT.to(hidden)
    total = gates.log().cumsum(1)
    pairs = (total[:, :, None] - total[:, None]).clamp(max=0.0).exp()
    seen = torch.ones(*pairs.shape[1:3], dtype=torch.bool).tril()[..., None]
    states = (pairs * seen * ((1 - gates) * inputs)[:, None]).sum(2)
    return states @ OUTPUT.to(hidden)


def adapted(layer: Layer, name: str, dtypes: tuple[str, ...] = EVERY) -> Any:
    """The implementation of a layer."""

    def small_layer(hidden: Tensor) -> Tensor:
        return layer(hidden)

    given: dict[str, Any] = {"name": name, "widths": WIDTH, "reference": "fp64", "dtypes": dtypes}
    return kernel(op="layer", **given)(small_layer)


def planted(layer: Layer | None, fault: Fault) -> Any:
    """The implementation with a fault; without one, the right one that it is held against."""
    return adapted(layer or token_by_token, f"fault:{fault.id}", fault.dtypes)


def narrowed(hidden: Tensor) -> Tensor:
    """In fp32, whatever wider format comes and is returned."""
    wide = hidden.dtype == torch.float64
    return token_by_token(hidden.float()).double() if wide else token_by_token(hidden)


FAULTS: Final = (
    Fault("LAYER-fp64", "float64 is computed in fp32", "class: hidden casts", "C",
          "hidden of float64", ("out",), lambda _: narrowed, "layer", dtypes=EVERY,
          operator="layer"),
)  # fmt: skip
