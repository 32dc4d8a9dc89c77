"""A token loop in torch that conforms to recurrent-fp32,
and some without a right backward; needs torch alone.
"""

from __future__ import annotations

import os
from typing import Any

import torch


def kda(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, initial_state: Any = None) -> Any:
    B, T, HV, V = v.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    q_, k_, v_, g_, beta_ = (x.to(wide) for x in (q, k, v, g, beta))
    q_, k_ = (x.repeat_interleave(HV // x.shape[2], 2) for x in (q_, k_))
    state = (
        torch.zeros(B, HV, q.shape[3], V, dtype=wide)
        if initial_state is None
        else initial_state.to(wide)
    )
    rows = [torch.zeros(B, 0, HV, V, dtype=wide)]
    for t in range(T):
        state = g_[:, t].exp()[..., None] * state
        state = (
            state
            + k_[:, t][..., None]
            * (beta_[:, t, :, None] * (v_[:, t] - torch.einsum("bhkv,bhk->bhv", state, k_[:, t])))[
                ..., None, :
            ]
        )
        rows.append(scale * torch.einsum("bhkv,bhk->bhv", state, q_[:, t])[:, None])
    return torch.cat(rows, 1).to(q.dtype), state


class _Scaled(torch.autograd.Function):
    """The identity, with a cotangent 1.02 times too large."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, dx: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return 1.02 * dx


class _Aborted(_Scaled):
    @staticmethod
    def backward(ctx: Any, dx: Any) -> Any:
        os.abort()


def wrong_dbeta(
    q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, initial_state: Any = None
) -> Any:
    return kda(q, k, v, g, _Scaled.apply(beta), scale=scale, initial_state=initial_state)


def aborts(
    q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any, initial_state: Any = None
) -> Any:
    return kda(q, k, v, g, _Aborted.apply(beta), scale=scale, initial_state=initial_state)


def detached(*tokens: Any, **named: Any) -> Any:
    return tuple(y.detach() for y in kda(*tokens, **named))


def leaves_torch(q: Any, *others: Any, **named: Any) -> Any:
    return kda(torch.from_numpy(q.numpy().copy()), *others, **named)
