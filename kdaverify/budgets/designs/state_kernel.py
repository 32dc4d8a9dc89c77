"""A state kernel split between the cores: scores, solve, w and u come from kernels before it, o from one behind it.

With one gate a token it scales v_new by the decay to the chunk's end and stores it after that; with a gate for every channel the keys carry
that decay, and nothing is scaled.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from oracles.chunk import STAGES, Chunk

EVERY, LAST = slice(None), slice(-1, None)


def gated_state(c: Chunk) -> None:
    """Math: 3.5; what the state adds is stored before it is added."""
    c.h = c.store("h", c.S)
    residual = c.store("residual", c.u - c.dot(c.w, c.h))
    gate, keys = _gate(c)
    gated = c.store("v_gated", residual if gate is None else residual * gate)
    c.v_new = c.store("v_new", residual)
    written = c.store("S_delta", c.dot(keys.transpose(-1, -2), gated))
    c.S = c.store("S", c.S * c.decay(LAST).transpose(-1, -2) + written)


def only_gated_state(c: Chunk) -> None:
    """The same where nothing but the scaled v_new leaves: o has to divide the decay out again."""
    stored = c.arithmetic.store
    left: dict[str, Tensor] = {}

    def keep(name: str, tensor: Tensor) -> Tensor:
        left[name] = stored(name, tensor)
        return left[name]

    c.arithmetic = replace(c.arithmetic, store=keep)
    gated_state(c)
    c.arithmetic = replace(c.arithmetic, store=stored)
    gate, _ = _gate(c)
    c.v_new = c.store("v_new", left["v_gated"] if gate is None else left["v_gated"] / gate)


def _gate(c: Chunk) -> tuple[Tensor | None, Tensor]:
    """The factor of v_new [C, 1] and the keys [C, K] that meet it."""
    g = c.tokens.g
    if bool((g == g[..., :1]).all()):
        return c.decay(LAST, EVERY)[..., :1], c.tokens.k
    return None, c.kg


GATED = replace(STAGES, state=gated_state)
ONLY_GATED = replace(STAGES, state=only_gated_state)
