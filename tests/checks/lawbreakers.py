"""Kernels that break one law each, and the problems they are tested on; most are right wherever
that law does not look.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.eager import Eager
from kdaverify.problems import Domain, Problem
from kdaverify.problems.axes import Gates
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

DENSE: Final = Problem(
    B=2,
    T=21,
    H=2,
    HV=4,
    K=8,
    V=6,
    dtype="fp32",
    gate="log-sigmoid",
    key="coherent-0.6",
    beta="uniform",
    state="random",
    value="normal",
    seed=5,
)
PACKED: Final = DENSE.replace(B=1, lengths=(7, 0, 9), T=20)
ABSENT: Final = DENSE.replace(state="absent")
HEADS: Final = DENSE.replace(gates="head")
ZERO: Final = DENSE.replace(state="zero")
Call = Callable[[Inputs], tuple[Tensor, Tensor]]


class Wrong(Eager):
    """The embedded kernel with something wrong around its call, there or back."""

    def __init__(
        self,
        there: Callable[[Call, Inputs], tuple[Tensor, Tensor]] | None = None,
        back: Any = None,
        *,
        gates: Gates = "channel",
    ) -> None:
        super().__init__("wrong", {"fp32": "eager", "bf16": "eager"})
        self.domain = Domain(gates=gates)
        self._there, self._back = there, back

    def forward(self, inputs: Inputs) -> Output:
        def right(x: Inputs) -> tuple[Tensor, Tensor]:
            found = Eager.forward(self, x)
            return found.o, found.final_state

        return Output(*(right(inputs) if self._there is None else self._there(right, inputs)))

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        found = super().gradients(inputs, cotangents)
        return found if self._back is None else self._back(found, inputs)


def _sees_one_token_ahead(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return o + 1e-7 * x.v.roll(-1, dims=1), final


def _gradients_of_the_next_token(found: Gradients[Any], x: Inputs) -> Gradients[Any]:
    return replace(found, dv=found.dv + 1e-7 * x.v.roll(-1, dims=1))


def _state_of_the_neighbour(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return o, final + 1e-7 * final.roll(1, dims=0)


def _last_row_read(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return o, final + 1e-7 * x.v[0, -1, :, None, :]


def _head_of_the_neighbour(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return o + 1e-7 * o.roll(1, dims=2), final


def _epsilon_on_values(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    return right(replace(x, v=torch.where(x.v.abs() < 1e-6, torch.zeros_like(x.v), x.v)))


def _first_scale_kept() -> Callable[[Call, Inputs], tuple[Tensor, Tensor]]:
    first: list[float] = []

    def call(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
        first.append(x.factor)
        return right(replace(x, scale=first[0]))

    return call


def _offset(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return o + 1e-6, final


def _keys_added_to_values(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return o + 1e-6 * x.k[..., :1].repeat_interleave(x.HV // x.H, dim=2), final


def _left_over() -> Callable[[Call, Inputs], tuple[Tensor, Tensor]]:
    left: list[Tensor] = []

    def call(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
        if x.initial_state is None and left:
            x = replace(x, initial_state=left[0])
        o, final = right(x)
        left[:] = [final]
        return o, final

    return call


def _clamped(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return o.clamp(-0.5, 0.5), final


def _decays_where_there_is_none(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    return right(replace(x, g=torch.where(x.g == 0, torch.full_like(x.g, -1e-4), x.g)))


def _flat_gates_misread(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    flat = (x.g == x.g[..., :1]).all(-1, keepdim=True)
    return right(replace(x, g=torch.where(flat, x.g * 1.4427, x.g)))


def _one_head_s_key_for_all_where_they_are_as_many(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    return right(replace(x, k=x.k[:, :, :1].expand_as(x.k).contiguous()) if x.H == x.HV else x)


def _scale_of_the_width(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    return right(replace(x, scale=x.K**-0.5))


def _columns_past_eight_swapped(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return (o.flip(-1) if x.V > 8 else o), final


def _first_channel_s_gate_bounds_all(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    return right(replace(x, g=torch.minimum(x.g, x.g[..., :1])))


def _state_of_the_first_tile(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    o, final = right(x)
    return o, right(x.span(0, 16, x.initial_state))[1] if x.T > 32 else final


def _products_of_one_channel(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    """Keys as if each had its largest channel alone: no error where they are one-hot."""
    largest = torch.nn.functional.one_hot(x.k.abs().argmax(-1), x.K).bool()
    return right(replace(x, k=torch.where(largest, x.k, torch.zeros_like(x.k))))


def _written_twice_without_a_gate(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    return right(replace(x, beta=(2 * x.beta).clamp(max=2.0)) if not bool(x.g.any()) else x)


def _gate_of_the_first_head_of_a_group(right: Call, x: Inputs) -> tuple[Tensor, Tensor]:
    first = torch.arange(x.HV) // (x.HV // x.H) * (x.HV // x.H)
    return right(replace(x, g=x.g[:, :, first]))


BROKEN: Final[dict[str, tuple[Adapter, Problem]]] = {
    "later-tokens": (Wrong(_sees_one_token_ahead), DENSE),
    "prefix-gradients": (Wrong(back=_gradients_of_the_next_token), DENSE),
    "neighbours": (Wrong(_state_of_the_neighbour), PACKED),
    "padding": (Wrong(_last_row_read), PACKED),
    "other-heads": (Wrong(_head_of_the_neighbour), DENSE),
    "other-entries": (Wrong(_state_of_the_neighbour), DENSE),
    "scaled-values": (Wrong(_epsilon_on_values), DENSE),
    "scaled-output": (Wrong(_first_scale_kept()), DENSE),
    "negated-values": (Wrong(_offset), DENSE),
    "negated-queries": (Wrong(_offset), DENSE),
    "negated-keys": (Wrong(_keys_added_to_values), DENSE),
    "no-writes": (Wrong(_keys_added_to_values), DENSE),
    "absent-state": (Wrong(_left_over()), ABSENT),
    "linearity": (Wrong(_clamped), DENSE),
    "no-decay": (Wrong(_decays_where_there_is_none), DENSE),
    "equal-channels": (Wrong(_flat_gates_misread), DENSE),
    "repeated-heads": (Wrong(_one_head_s_key_for_all_where_they_are_as_many), DENSE),
    "padded-keys": (Wrong(_scale_of_the_width), DENSE),
    "padded-values": (Wrong(_columns_past_eight_swapped), DENSE),
    "permuted-channels": (Wrong(_first_channel_s_gate_bounds_all), DENSE),
    "appended-tokens": (Wrong(_state_of_the_first_tile), DENSE),
    "rotated-channels": (
        Wrong(_products_of_one_channel, gates="head"),
        HEADS.replace(key="one-hot"),
    ),
    "shifted-gates": (Wrong(_written_twice_without_a_gate, gates="head"), HEADS),
    "permuted-heads": (Wrong(_gate_of_the_first_head_of_a_group, gates="head"), HEADS),
}
