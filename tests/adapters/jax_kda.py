"""A token loop in JAX that conforms to recurrent-fp32, and some with planted faults; for this
interpreter and for others.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

WRONG = 1.02


def kda(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    *,
    scale: Any,
    initial_state: Any = None,
    cu_seqlens: Any = None,
) -> Any:
    """The definition in fp32 (fp64 for fp64), one token of every sequence or pack at a time."""
    B, T, HV, V = v.shape
    wide = jnp.promote_types(q.dtype, jnp.float32)
    N = B if cu_seqlens is None else cu_seqlens.shape[0] - 1
    start = (
        jnp.zeros((N, HV, q.shape[3], V), wide)
        if initial_state is None
        else initial_state.astype(wide)
    )
    # Widened first: the transpose of repeat adds the gradients of the value heads, which must not
    # happen in 16 bits.
    q_, k_ = (jnp.repeat(x.astype(wide), HV // x.shape[2], axis=2) for x in (q, k))
    tokens = [jnp.moveaxis(x.astype(wide), 1, 0) for x in (q_, k_, v, g, beta)]
    # A token outside of every sequence of a pack is past the end of the states: it reads zeros and
    # its writes are dropped.
    rows = jnp.arange(B)[None].repeat(T, 0)
    if cu_seqlens is not None:
        rows = jnp.searchsorted(cu_seqlens, jnp.arange(T), side="right")[:, None] - 1

    def token(states: Any, x: Any) -> Any:
        row, q, k, v, g, beta = x
        decayed = jnp.exp(g)[..., None] * states.at[row].get(mode="fill", fill_value=0)
        after = (
            decayed
            + k[..., None]
            * (beta[..., None] * (v - jnp.einsum("bhkv,bhk->bhv", decayed, k)))[..., None, :]
        )
        o = jnp.where((row < N)[:, None, None], scale * jnp.einsum("bhkv,bhk->bhv", after, q), 0)
        return states.at[row].set(after, mode="drop"), o

    final, o = jax.lax.scan(token, start, (rows, *tokens))
    return jnp.moveaxis(o, 0, 1).astype(q.dtype), final


compiled = jax.jit(kda)


def with_backward(change: Callable[[Any], Any]) -> Callable[..., Any]:
    """The loop with a backward of its own, whose gradients (a dict by input) `change` edits."""

    def call(
        q: Any,
        k: Any,
        v: Any,
        g: Any,
        beta: Any,
        *,
        scale: Any,
        initial_state: Any = None,
        cu_seqlens: Any = None,
    ) -> Any:
        def plain(x: Any) -> Any:
            return compiled(**x, scale=scale, cu_seqlens=cu_seqlens)

        def saved(x: Any) -> Any:
            return plain(x), x

        def back(x: Any, dy: Any) -> Any:
            return (change(jax.vjp(plain, x)[1](dy)[0]),)

        loop = jax.custom_vjp(plain)
        loop.defvjp(saved, back)
        return loop({"q": q, "k": k, "v": v, "g": g, "beta": beta, "initial_state": initial_state})

    return call


wrong_dbeta = with_backward(
    lambda dx: {**dx, "beta": (WRONG * dx["beta"]).astype(dx["beta"].dtype)}
)
lost_dg = with_backward(lambda dx: {**dx, "g": dx["g"].at[:, -1:].set(0)})


def _aborts(dx: Any) -> Any:
    os.abort()


aborts = with_backward(_aborts)


def leaves_jax(
    q: Any,
    k: Any,
    v: Any,
    g: Any,
    beta: Any,
    *,
    scale: Any,
    initial_state: Any = None,
    cu_seqlens: Any = None,
) -> Any:
    """Goes through NumPy, so JAX cannot differentiate it."""
    return compiled(
        jnp.asarray(np.asarray(q)),
        k,
        v,
        g,
        beta,
        scale=scale,
        initial_state=initial_state,
        cu_seqlens=cu_seqlens,
    )


def numpy_out(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any) -> Any:
    """Returns o as no JAX array."""
    o, state = compiled(q, k, v, g, beta, scale=scale)
    return np.asarray(o), state


def triple(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any) -> Any:
    """Returns more than a kernel does."""
    return (*compiled(q, k, v, g, beta, scale=scale), q)


def o_alone(q: Any, k: Any, v: Any, g: Any, beta: Any, *, scale: Any) -> Any:
    """Returns no final state."""
    return compiled(q, k, v, g, beta, scale=scale)[0]


def backward(
    do: Any,
    d_final_state: Any,
    *tokens: Any,
    scale: Any,
    initial_state: Any = None,
    cu_seqlens: Any = None,
) -> Any:
    """The gradients of the loop, as a backward written by hand returns them."""
    given = tokens if initial_state is None else (*tokens, initial_state)

    def call(*x: Any) -> Any:
        return compiled(
            *x[:5],
            scale=scale,
            initial_state=initial_state if len(x) == 5 else x[5],
            cu_seqlens=cu_seqlens,
        )

    return jax.vjp(call, *given)[1]((do, d_final_state))


def backward_without_state(*given: Any, **named: Any) -> Any:
    return backward(*given, **named)[:5]


def backward_in_fp32(*given: Any, **named: Any) -> Any:
    return tuple(dx.astype(jnp.float32) for dx in backward(*given, **named))


def backward_per_value_head(*given: Any, **named: Any) -> Any:
    dq, *others = backward(*given, **named)
    return jnp.repeat(dq, 2, axis=2), *others
