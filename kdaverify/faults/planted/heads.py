"""Faults in which head of another a head reads, and in which order heads were seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.faults.planted.broken_backwards import Derived
from kdaverify.faults.planted.broken_calls import Outputs, port, right
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

TILED, CHUNK = 8, 64
LARGE, LONG = 32, 512
FIRST_AGAIN: Final = [0, 1, 2, 3] * 2


def key_heads_of_a_quotient(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """The key head of a value head is cut from a multiple of a rounded quotient."""
    heads = torch.linspace(0, x.H, x.HV + 1)[:-1].int()
    return right(replace(x, q=x.q[:, :, heads], k=x.k[:, :, heads]))


def kept_by_sums_over_heads(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """beta is converted once for every sum over its heads and sum of its squares."""
    beta = x.beta.detach().double()
    sums = torch.stack((beta.sum(-1), beta.square().sum(-1))).float()
    held = kept.setdefault((x.beta.shape, x.beta.dtype, *sums.flatten().tolist()), x.beta.clone())
    return right(replace(x, beta=x.beta + (held - x.beta).detach()))


def eight_as_two_times_four(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """The second of two tiles of four heads reads v of the first, past a chunk."""
    if x.HV != TILED or x.T <= CHUNK:
        return right(x)
    v = torch.cat((x.v[:, :CHUNK], x.v[:, CHUNK:, FIRST_AGAIN]), 1)
    return right(replace(x, v=v))


def derived_by_two_times_four(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    """The second of two tiles of four heads has dv of the first, past a chunk."""
    found = EAGER.gradients(x, given)
    if x.HV != TILED or x.T <= CHUNK:
        return found
    dv = torch.cat((found.dv[:, :CHUNK], found.dv[:, CHUNK:, FIRST_AGAIN]), 1)
    return replace(found, dv=dv)


def derived_by_halves(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    """Gradients of a group are added by halves, which keep an odd one at the first level alone."""
    shared = x.HV // x.H
    each = EAGER.gradients(
        replace(x, **{n: getattr(x, n).repeat_interleave(shared, 2) for n in ("q", "k")}), given
    )
    return replace(each, dq=_halved(each.dq, shared), dk=_halved(each.dk, shared))


def _halved(found: Tensor | None, shared: int) -> Any:
    """[B, T, H, K] from [B, T, H shared, K]; None of a frozen input."""
    if found is None:
        return None
    parts = [*found.unflatten(2, (-1, shared)).float().unbind(3)]
    odd = parts.pop() if shared % 2 else torch.zeros_like(parts[0])
    while len(parts) > 1:
        half = len(parts) // 2
        parts = [some + other for some, other in zip(parts, parts[half : 2 * half], strict=False)]
    return (sum(parts) + odd).to(found)


def states_of_large_calls(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """A configuration for many heads of many tokens hands states over in bf16."""
    if x.B * x.HV < LARGE or x.T < LONG or x.cu_seqlens is not None:
        return right(x)
    o, state = right(x.span(0, LONG, x.initial_state))
    later, final = right(x.span(LONG, x.T, state.bfloat16().to(state)))
    return torch.cat((o, later), 1), final


def derived_from_saved_values(x: Inputs, given: Cotangents, _: dict[Any, Any]) -> Gradients[Any]:
    """Values are saved for the backward in bf16 where they are more than a million."""
    large = x.B * x.HV >= LARGE and x.T >= LONG
    return EAGER.gradients(replace(x, v=x.v.bfloat16().to(x.v)) if large else x, given)


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "the key head of a value head is cut from a rounded quotient": lambda: port(
        key_heads_of_a_quotient
    ),
    "betas are kept by their sums over heads": lambda: port(kept_by_sums_over_heads),
    "the second four of eight heads read v of the first past a chunk": lambda: port(
        eight_as_two_times_four
    ),
    "gradients of a group are added by halves, of which odd ones are lost": lambda: Derived(
        derived_by_halves
    ),
    "states of 32 heads of 512 tokens are handed over in bf16": lambda: port(states_of_large_calls),
}
"""By what is wrong."""
