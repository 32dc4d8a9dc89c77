"""The gradients by definition: the adjoint of the token recurrence, one token at a time from the last to the first."""

from __future__ import annotations

import torch
from torch import Tensor

from oracles.arithmetic import NATIVE, Arithmetic
from oracles.gradients import Cotangents, Gradients, Terms, over_key_heads, zero_gradients
from oracles.inputs import Inputs
from oracles.recurrence import Token, advance
from oracles.scan import Tensors, Tokens, scan

# Tokens between two kept states: the states inside a block are computed a second time.
BLOCK = 64


def adjoint(
    inputs: Inputs,
    cotangents: Cotangents,
    *,
    dtype: torch.dtype = torch.float64,
    arithmetic: Arithmetic = NATIVE,
) -> Gradients[Tensor]:
    """Gradients of the token recurrence, batched over sequences and value heads.

    Math: section 5. Stored tensors of a token: decayed, p, u, S (twice: on the way there and on the way back), then P, dp, dv,
    dbeta, dq_head, dk_head, dS, dg; dq and dk once, summed over the value heads of a key head. dp is the gradient of u.
    dg is one sum over a row, never a difference of sums; at a hard reset it is exactly 0.

    Args:
        inputs: the call; every tensor is cast to `dtype` first.
        cotangents: of o and S_T.
        dtype: the type computed in.
        arithmetic: the roundings; native operations of `dtype` by default.
    Returns:
        Gradients of tensors in `dtype`, zero on padding.
    Raises:
        InputError: the cotangents do not fit the inputs.
    """
    return adjoint_with_terms(inputs, cotangents, dtype=dtype, arithmetic=arithmetic)[0]


def adjoint_with_terms(
    inputs: Inputs,
    cotangents: Cotangents,
    *,
    dtype: torch.dtype = torch.float64,
    arithmetic: Arithmetic = NATIVE,
) -> tuple[Gradients[Tensor], Terms]:
    """The same, and the sizes of the terms that meet in the gradients."""
    do, dS = cotangents.of(inputs, dtype)
    if not any(inputs.lengths):
        return zero_gradients(inputs, dS), Terms(torch.zeros_like(inputs.g, dtype=dtype), dS.abs())
    kept: list[Tensor] = []

    def forwards(carry: Tensors, x: Tokens) -> tuple[Tensors, Tensors]:
        kept.append(carry[0])
        return (_block(carry[0], x, arithmetic)[-1].after,), ()

    def backwards(carry: Tensors, x: Tokens) -> tuple[Tensors, Tensors]:
        rows = list[Tensors]()
        tokens = _block(kept.pop(), x, arithmetic)
        for t in reversed(range(len(tokens))):
            carry, outputs = _retreat(carry, x.rows(slice(t, t + 1)), tokens[t], inputs.factor, arithmetic)
            rows.append(outputs)
        return carry, tuple(torch.cat(pieces[::-1], dim=2) for pieces in zip(*rows, strict=True))

    scan(inputs, BLOCK, (inputs.state.to(dtype),), forwards, dtype=dtype)
    first, rows = scan(inputs, BLOCK, (dS, dS.abs()), backwards, dtype=dtype, others=(do,), reverse=True)
    (dS, size), (dq, dk, dv, dg, dbeta, terms) = first, rows
    dq, dk = (arithmetic.store(name, over_key_heads(inputs, x)) for name, x in (("dq", dq), ("dk", dk)))
    return Gradients(dq, dk, dv, dg, dbeta, dS), Terms(terms, size)


def _block(state: Tensor, x: Tokens, arithmetic: Arithmetic) -> list[Token]:
    """The tokens of one block, in order."""
    tokens: list[Token] = []
    for t in range(x.k.shape[-2]):
        tokens.append(advance(state, x.rows(slice(t, t + 1)), arithmetic))
        state = tokens[-1].after
    return tokens


def _retreat(carry: Tensors, x: Tokens, token: Token, scale: float, arithmetic: Arithmetic) -> tuple[Tensors, Tensors]:
    """One token: gradient and size of the state before it [K, V], and dq, dk, dv, dg, dbeta and the size of the terms of dg."""
    (dS, size), store, dot = carry, arithmetic.store, arithmetic.dot
    q, k, beta, (do,) = x.q, x.k, x.beta[..., None], x.others
    P = store("P", dS + scale * q.transpose(-1, -2) * do)
    dp = store("dp", dot(k, P))
    dv = store("dv", beta * dp)
    dbeta = store("dbeta", (dp * token.residual).sum(-1))
    dq = store("dq_head", scale * dot(do, token.after.transpose(-1, -2)))
    written, read = dot(token.u, P.transpose(-1, -2)), beta * dot(dp, token.decayed.transpose(-1, -2))
    dk = store("dk_head", written - read)
    erased = beta * k.transpose(-1, -2) * dp
    d_decayed = P - erased
    overlap = d_decayed * token.decayed
    dg = store("dg", overlap.sum(-1)[..., None, :])
    terms = overlap.abs().sum(-1)[..., None, :] + (q * dq).abs() + (k * written).abs() + (k * read).abs()
    decay = arithmetic.exp(x.g).transpose(-1, -2)
    size = torch.maximum(size, P.abs() + erased.abs()) * decay
    return (store("dS", d_decayed * decay), size), (dq, dk, dv, dg, dbeta, terms)
