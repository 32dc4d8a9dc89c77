"""Faults in which head of another a head reads, and in which order heads were seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.faults.planted.broken_calls import Outputs, port, right
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

TILED, CHUNK = 8, 64
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


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "the key head of a value head is cut from a rounded quotient": lambda: port(
        key_heads_of_a_quotient
    ),
    "betas are kept by their sums over heads": lambda: port(kept_by_sums_over_heads),
    "the second four of eight heads read v of the first past a chunk": lambda: port(
        eight_as_two_times_four
    ),
}
"""By what is wrong."""
