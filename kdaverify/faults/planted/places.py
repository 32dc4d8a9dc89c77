"""Faults of states and tensors that come from elsewhere: from the call before, from one tensor in
two places of a call, from one state of all sequences.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.faults.fault import summed, with_gradient, with_gradients
from kdaverify.faults.planted.broken_calls import Outputs, decoding, port, right
from oracles.inputs import Inputs


def detached_behind_a_graph(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """A given state that is no leaf is one of an earlier call, and detached."""
    state = x.initial_state
    return right(x if state is None or state.is_leaf else replace(x, initial_state=state.detach()))


def one_buffer_of_rows(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Gradients are kept by the address of their tensor."""
    if x.q.data_ptr() != x.k.data_ptr():
        return right(x)
    q, k = with_gradients(summed, x.q, x.k)
    return right(replace(x, q=q, k=k))


def gradient_of_a_prefix(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """A state that all sequences share has their summed gradient, once for each."""
    state = x.initial_state
    if state is None or not _is_shared(state):
        return right(x)
    shared = with_gradient(lambda dS: dS.sum(0, keepdim=True).expand_as(dS), state)
    return right(replace(x, initial_state=shared))


def laid_like_the_given_state(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """The returned state lies as the given one: one entry where that has a stride of 0."""
    o, final = right(x)
    return o, final[:1].expand_as(final) if _is_shared(x.initial_state) else final


def rows_of_a_state_together(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Rows of a state begin where those of a dense one do."""
    state = x.initial_state
    if state is None or state.stride(-1) != 1 or state.stride(-2) <= state.shape[-1]:
        return right(x)
    together = (*state.stride()[:-2], state.shape[-1], 1)
    read = state.as_strided(state.shape, together).nan_to_num(0.0)
    return right(replace(x, initial_state=read))


def zeros_not_loaded(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Where every given state is 0 the kernel starts from zeros of its own."""
    state = x.initial_state
    if state is None or bool(state.any()):
        return right(x)
    return right(replace(x, initial_state=state.detach()))


def one_by_address_and_shape(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """q and k that begin at one address and have one shape are taken for one tensor."""
    same = x.q.data_ptr() == x.k.data_ptr() and x.q.shape == x.k.shape
    return right(replace(x, q=x.k) if same else x)


def _is_shared(state: Tensor | None) -> bool:
    return state is not None and len(state) > 1 and state.stride(0) == 0


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "a given state that is no leaf is detached": lambda: port(detached_behind_a_graph),
    "where q and k are one tensor each has the sum of both gradients": lambda: port(
        one_buffer_of_rows
    ),
    "a state that sequences share has their summed gradient once for each": lambda: port(
        gradient_of_a_prefix
    ),
    "a state of stride 0 has one final state": lambda: port(laid_like_the_given_state),
    "the same in a decode step": lambda: decoding(laid_like_the_given_state),
    "rows of a state are read as if none lay apart, in a decode step": lambda: decoding(
        rows_of_a_state_together
    ),
    "states that are all zeros are not loaded": lambda: port(zeros_not_loaded),
    "q is taken for k by its address and shape": lambda: port(one_by_address_and_shape),
}
"""By what is wrong."""
