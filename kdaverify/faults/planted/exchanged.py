"""Kernels that infer the order of a state's axes from its strides: right where K and V differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final, TypeVar

from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.faults.planted.broken_backwards import Derived
from kdaverify.faults.planted.broken_calls import Outputs, decoding, port, right
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

State = TypeVar("State", Tensor, Tensor | None)


def _inferred(state: State) -> State:
    """The state as [V, K] where its strides and its sizes are those of one."""
    if state is None or state.shape[-2] != state.shape[-1] or state.stride(-2) != 1:
        return state
    return state.mT.contiguous() if state.stride(-1) == state.shape[-2] > 1 else state


def state_by_strides(x: Inputs, _: dict[Any, Any]) -> Outputs:
    return right(replace(x, initial_state=_inferred(x.initial_state)))


def state_of_a_pack_by_strides(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    return right(x) if x.cu_seqlens is None else state_by_strides(x, kept)


def derived_from_a_state_by_strides(
    x: Inputs, given: Cotangents, _: dict[Any, Any]
) -> Gradients[Any]:
    return EAGER.gradients(replace(x, initial_state=_inferred(x.initial_state)), given)


def derived_from_a_cotangent_by_strides(
    x: Inputs, given: Cotangents, _: dict[Any, Any]
) -> Gradients[Any]:
    return EAGER.gradients(x, replace(given, d_final_state=_inferred(given.d_final_state)))


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "a state with K = V is taken for [V, K] by its strides": lambda: port(state_by_strides),
    "the gradient of a state with K = V is taken for [V, K] by its strides": lambda: Derived(
        derived_from_a_cotangent_by_strides
    ),
    "a decode step takes a state with K = V for [V, K] by its strides": lambda: decoding(
        state_by_strides
    ),
    "in packs a state with K = V is taken for [V, K] by its strides": lambda: port(
        state_of_a_pack_by_strides
    ),
}
"""By what is wrong."""
