"""Decode entry points beside a right prefill: registers for 128 columns, rows of a padded batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch

from kdaverify.adapters.base import Adapter
from kdaverify.faults.planted.broken_calls import Outputs, Patch, counted, decoding, port, right
from oracles.inputs import Inputs

WAVE: Final = 32
GRAPH: Final = 32
LARGE: Final = 2**20
COLUMNS: Final = 128
"""In two registers of 64 lanes."""


def keys_of_two_registers(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Key channels past 128 are neither decayed nor read nor written."""
    state = x.state
    first = replace(
        x,
        q=x.q[..., :COLUMNS],
        k=x.k[..., :COLUMNS],
        g=x.g[..., :COLUMNS],
        scale=x.factor,
        initial_state=state[..., :COLUMNS, :],
    )
    o, final = right(first)
    return o, torch.cat((final, state[..., COLUMNS:, :].to(final.dtype)), dim=-2)


def values_of_two_registers(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Of values past 128 columns nothing is written."""
    o, final = (found.clone() for found in right(x))
    o[..., COLUMNS:] = 0
    final[..., COLUMNS:] = x.state[..., COLUMNS:].to(final.dtype)
    return o, final


def gates_by_waves(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """From request 32 on gates are those of an earlier wave."""
    return right(replace(x, g=x.g[torch.arange(x.B) % WAVE]) if x.B > 1 else x)


def padded(*, clear: bool) -> Patch:
    """Final states of a batch that is padded to a power of two, by the slots of its rows.

    Args:
        clear: whether padded rows get a slot of their own; they have that of an earlier call.
    """

    def patch(x: Inputs, kept: dict[Any, Any]) -> Outputs:
        o, final = right(x)
        rows = 1 << (x.B - 1).bit_length()
        key = (rows, final.shape[1:], final.dtype)
        slots, states = kept.setdefault(
            key, (torch.full((rows,), rows), final.new_zeros(rows, *final.shape[1:]))
        )
        slots[: x.B] = (torch.arange(x.B) + counted(kept)) % rows
        states[: x.B] = final
        if clear:
            slots[x.B :] = rows
        pool = final.new_zeros(rows + 1, *final.shape[1:])
        for slot, state in zip(slots.tolist(), states, strict=True):
            pool[slot] = state
        return o, pool[slots[: x.B]]

    return patch


def state_that_came_back(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """The state that was returned last is kept in another order, and taken for the same tensor."""
    last = kept.get("last")
    if last is not None and x.initial_state is not None:
        returned, copy = last
        same = x.initial_state.data_ptr() == returned.data_ptr()
        x = replace(x, initial_state=copy) if same else x
    o, final = right(x)
    kept["last"] = final, final.clone()
    return o, final


def large_states_in_place(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """States of a million numbers and more are updated where they lie."""
    o, final = right(x)
    if x.initial_state is None or final.numel() < LARGE:
        return o, final
    return o, x.initial_state.copy_(final)


def buffer_of_a_graph(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """A step of 32 sequences returns the buffer of its graph."""
    o, final = right(x)
    if x.B != GRAPH:
        return o, final
    return o, kept.setdefault((final.shape, final.dtype), torch.empty_like(final)).copy_(final)


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "a decode step keeps 128 key channels": lambda: decoding(keys_of_two_registers),
    "a decode step keeps 128 columns of values": lambda: decoding(values_of_two_registers),
    "padded rows of a decode step write slots of an earlier call": lambda: decoding(
        padded(clear=False)
    ),
    "a state that comes back is that of the step before": lambda: decoding(state_that_came_back),
    "from request 32 on a decode step has gates of the first wave": lambda: decoding(
        gates_by_waves
    ),
    "a state that enters the next call is that of the one before": lambda: port(
        state_that_came_back
    ),
}
"""By what is wrong."""
