"""A right kernel that needs NumPy alone, and some that misbehave: run in other interpreters, where
nothing of ours is installed.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise
from typing import Any

import ml_dtypes  # noqa: F401 # pyright: ignore[reportUnusedImport] # NumPy then knows bfloat16
import numpy as np

SEVEN = 7


def kda(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    *,
    scale: Any = None,
    initial_state: Any = None,
    cu_seqlens: Any = None,
) -> Any:
    """The definition, token by token, in float64."""
    B, T, HV, V = v.shape
    K, group = q.shape[3], HV // q.shape[2]
    spans = (
        [(b, 0, T) for b in range(B)]
        if cu_seqlens is None
        else [(0, *pair) for pair in pairwise(cu_seqlens)]
    )
    S = (
        np.zeros((len(spans), HV, K, V))
        if initial_state is None
        else initial_state.astype(np.float64)
    )
    o = np.zeros((B, T, HV, V))
    for n, (b, first, end) in enumerate(spans):
        for t in range(first, end):
            for h in range(HV):
                key, query = (x[b, t, h // group].astype(np.float64) for x in (k, q))
                decayed = np.exp(g[b, t, h].astype(np.float64))[:, None] * S[n, h]
                S[n, h] = decayed + float(beta[b, t, h]) * np.outer(
                    key, v[b, t, h].astype(np.float64) - key @ decayed
                )
                o[b, t, h] = scale * (query @ S[n, h])
    return o.astype(q.dtype), S.astype(np.float32)


def turned(*tokens: Any, scale: Any, initial_state: Any = None, cu_seqlens: Any = None) -> Any:
    """Wants and returns heads before tokens, and states with V first."""
    state = None if initial_state is None else initial_state.swapaxes(-1, -2)
    o, state = kda(
        *(x.swapaxes(1, 2) for x in tokens), scale=scale, initial_state=state, cu_seqlens=cu_seqlens
    )
    return o.swapaxes(1, 2), state.swapaxes(-1, -2)


def talks(*tokens: Any, **named: Any) -> Any:
    print("a kernel may say what it likes" * 5000)  # noqa: T201
    return kda(*tokens, **named)


def breaks(q: Any, *others: Any, **named: Any) -> Any:
    if q.shape[1] == SEVEN:
        raise ValueError("seven is too many")
    return kda(q, *others, **named)


def exits(q: Any, *others: Any, **named: Any) -> Any:
    if q.shape[1] == SEVEN:
        os._exit(9)
    return kda(q, *others, **named)


def aborts(q: Any, *others: Any, **named: Any) -> Any:
    if q.shape[1] == SEVEN:
        os.abort()
    return kda(q, *others, **named)


def hangs(q: Any, *others: Any, **named: Any) -> Any:
    if q.shape[1] == SEVEN:
        time.sleep(10**6)
    return kda(q, *others, **named)
