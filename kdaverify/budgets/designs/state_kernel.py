"""A state kernel split between the cores; scores, solve, w, u and o come from other kernels.

Where a head has one gate a token, v_new is scaled by its decay to the chunk's end and stored after
that. Where every channel has its own, the keys carry the decay, and what is stored is not scaled.

`gated_state` takes gates of either kind, beside kernels with a gate a channel; `scaled_state` takes
one gate a head, beside kernels that make use of that (`budgets.scalar_decay`).
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kdaverify.budgets import scalar_decay
from oracles.chunk import STAGES, Chunk

EVERY, LAST = slice(None), slice(-1, None)


def gated_state(c: Chunk) -> None:
    """Math: 3.5; what the state adds is stored before it is added,
    o is made of the v_new that no gate has scaled.
    """
    residual, _, _ = _written(c)
    c.v_new = c.store("v_new", residual)


def only_gated_state(c: Chunk) -> None:
    """The same where nothing but the scaled v_new leaves: o has to divide the decay out again."""
    _, gated, gate = _written(c)
    c.v_new = c.store("v_new", gated / gate)


def _written(c: Chunk) -> tuple[Tensor, Tensor, Tensor]:
    """Advances S. Returns v_new before the gate and after it, [C, V], and the gate [C, 1]."""
    c.h = c.store("h", c.S)
    residual = c.store("residual", c.u - c.dot(c.w, c.h))
    g, decay = c.tokens.g, c.decay(LAST, EVERY)[..., :1]
    one = (g == g[..., :1]).all(-1).all(-1)[..., None, None]
    gate, keys = torch.where(one, decay, torch.ones_like(decay)), torch.where(one, c.tokens.k, c.kg)
    gated = c.store("v_gated", residual * gate)
    written = c.store("S_delta", c.dot(keys.transpose(-1, -2), gated))
    c.S = c.store("S", c.S * c.decay(LAST).transpose(-1, -2) + written)
    return residual, gated, gate


def scaled_state(c: Chunk) -> None:
    """Math: 3.5 with one gate a head; v_new is scaled and then stored for the state, whose other
    operand is k itself; o is made of the v_new that is not scaled.
    """
    c.h = c.store("h", c.S)
    residual = c.store("residual", c.u - c.dot(c.w, c.h))
    c.v_new = c.store("v_new", residual)
    scaled = c.store("v_decayed", residual * scalar_decay.to_end(c))
    written = c.store("S_delta", c.dot(c.tokens.k.transpose(-1, -2), scaled))
    c.S = c.store("S", c.S * scalar_decay.whole(c) + written)


GATED = replace(STAGES, state=gated_state)
ONLY_GATED = replace(STAGES, state=only_gated_state)
SCALED = replace(scalar_decay.FORWARD, state=scaled_state)
