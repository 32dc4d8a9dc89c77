"""The definition: KDA one token at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.arithmetic import NATIVE, Arithmetic
from oracles.inputs import Inputs
from oracles.scan import scan
from oracles.tokens import Tensors, Tokens


def recurrence(
    inputs: Inputs, *, dtype: torch.dtype = torch.float64, arithmetic: Arithmetic = NATIVE
) -> tuple[Tensor, Tensor]:
    """Token recurrence, batched over sequences and value heads.

    Math: section 2. Stored tensors, in order: decayed, p, u, S, o. Of a state that is held twice,
    o and S_T are those of the copy, which `u` is not computed from.

    Args:
        inputs: the call; every tensor is cast to `dtype` first.
        dtype: the type computed in.
        arithmetic: the roundings; native operations of `dtype` by default.
    Returns:
        o [B, T, HV, V] and S_T [N, HV, K, V], both in `dtype`.
    Source: Kimi Linear technical report, section 3.
    """

    def step(carry: Tensors, x: Tokens) -> tuple[Tensors, Tensors]:
        token = advance(carry[0], x, arithmetic)
        copies = [_copied(copy, x, token, arithmetic) for copy in carry[1:]]
        held = (token.after, *copies)
        return held, (arithmetic.store("o", inputs.factor * arithmetic.dot(x.q, held[-1])),)

    if not any(inputs.lengths):
        return torch.zeros_like(inputs.v, dtype=dtype), inputs.state.to(dtype)
    begun = (inputs.state.to(dtype),) * (2 if arithmetic.twice else 1)
    finals, (o,) = scan(inputs, 1, begun, step, dtype=dtype)
    return o, finals[-1]


@dataclass(frozen=True)
class Token:
    """A token's effect on the state: exp(g) [.., K, 1], S~ [.., K, V], v - S~^T k and u [.., 1, V],
    S after.
    """

    decay: Tensor
    decayed: Tensor
    residual: Tensor
    u: Tensor
    after: Tensor


def advance(state: Tensor, x: Tokens, arithmetic: Arithmetic) -> Token:
    """One token. Math: section 2. Stores decayed, p, u, S."""
    decay = arithmetic.exp(x.g).transpose(-1, -2)
    decayed = arithmetic.store("decayed", state * decay)
    residual = x.v - arithmetic.store("p", arithmetic.dot(x.k, decayed))
    u = arithmetic.store("u", x.beta[..., None] * residual)
    after = arithmetic.store("S", decayed + x.k.transpose(-1, -2) * u)
    return Token(decay, decayed, residual, u, after)


def _copied(copy: Tensor, x: Tokens, token: Token, arithmetic: Arithmetic) -> Tensor:
    """The copy of the state after a token, to which the same is written. Stores decayed, S."""
    decayed = arithmetic.store("decayed", copy * token.decay)
    return arithmetic.store("S", decayed + x.k.transpose(-1, -2) * token.u)
