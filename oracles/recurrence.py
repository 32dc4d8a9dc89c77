"""The definition: KDA one token at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from oracles.arithmetic import NATIVE, Arithmetic
from oracles.inputs import Inputs
from oracles.scan import Tensors, Tokens, scan


def recurrence(inputs: Inputs, *, dtype: torch.dtype = torch.float64, arithmetic: Arithmetic = NATIVE) -> tuple[Tensor, Tensor]:
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
        (state,) = carry
        q, k, v, beta = x.q, x.k, x.v, x.beta[..., None]
        decayed = arithmetic.store("decayed", state * arithmetic.exp(x.g).transpose(-1, -2))
        p = arithmetic.store("p", arithmetic.dot(k, decayed))
        u = arithmetic.store("u", beta * (v - p))
        state = arithmetic.store("S", decayed + k.transpose(-1, -2) * u)
        return (state,), (arithmetic.store("o", inputs.factor * arithmetic.dot(q, state)),)

    if not any(inputs.lengths):
        return torch.zeros_like(inputs.v, dtype=dtype), inputs.state.to(dtype)
    (final,), (o,) = scan(inputs, 1, (inputs.state.to(dtype),), step, dtype=dtype)
    return o, final
