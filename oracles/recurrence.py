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

    Math: section 2. Stored tensors, in order: decayed, p, u, S, o.

    Args:
        inputs: the call; every tensor is cast to `dtype` first.
        dtype: the type computed in.
        arithmetic: the roundings; native operations of `dtype` by default.
    Returns:
        o [B, T, HV, V] and S_T [N, HV, K, V], both in `dtype`.
    Source: Kimi Linear technical report, section 3.
    """

    def step(carry: Tensors, x: Tokens) -> tuple[Tensors, Tensors]:
        state = advance(carry[0], x, arithmetic).after
        return (state,), (arithmetic.store("o", inputs.factor * arithmetic.dot(x.q, state)),)

    if not any(inputs.lengths):
        return torch.zeros_like(inputs.v, dtype=dtype), inputs.state.to(dtype)
    (final,), (o,) = scan(inputs, 1, (inputs.state.to(dtype),), step, dtype=dtype)
    return o, final


@dataclass(frozen=True)
class Token:
    """A token's effect on the state: S~ [.., K, V], v - S~^T k and u [.., 1, V], S after."""

    decayed: Tensor
    residual: Tensor
    u: Tensor
    after: Tensor


def advance(state: Tensor, x: Tokens, arithmetic: Arithmetic) -> Token:
    """One token. Math: section 2. Stores decayed, p, u, S."""
    decayed = arithmetic.store("decayed", state * arithmetic.exp(x.g).transpose(-1, -2))
    residual = x.v - arithmetic.store("p", arithmetic.dot(x.k, decayed))
    u = arithmetic.store("u", x.beta[..., None] * residual)
    return Token(decayed, residual, u, arithmetic.store("S", decayed + x.k.transpose(-1, -2) * u))
