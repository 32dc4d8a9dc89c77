"""The gradients by definition: the token recurrence's adjoint, from the last token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oracles.arithmetic import NATIVE, Arithmetic
from oracles.gradients import (
    Cotangents,
    Gradients,
    Terms,
    over_channels,
    over_key_heads,
    zero_gradients,
)
from oracles.inputs import Inputs
from oracles.recurrence import Token, advance
from oracles.scan import there_and_back
from oracles.tokens import Tensors, Tokens

Step = Callable[[Tensors, Tokens, Token], tuple[Tensors, Tensors]]


def adjoint(
    inputs: Inputs,
    cotangents: Cotangents,
    *,
    dtype: torch.dtype = torch.float64,
    arithmetic: Arithmetic = NATIVE,
) -> Gradients[Tensor]:
    """Gradients of the token recurrence, batched over sequences and value heads.

    Math: section 5. Stored tensors of a token: decayed, p, u, S (twice: on the way there and on the
    way back), then P, dp, dv, dbeta, dq_head, dk_head, dg, dS; dq and dk once, summed over the
    value heads of a key head. dp is the gradient of u. dg is one sum over a row, never a difference
    of sums; at a hard reset it is exactly 0.

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
    do, dS = cotangents.of(inputs, dtype)
    if not any(inputs.lengths):
        return zero_gradients(inputs, dS)

    def back(carry: Tensors, x: Tokens, token: Token) -> tuple[Tensors, Tensors]:
        found = retreat(carry[0], x, token, inputs.factor, arithmetic)
        return (found.before,), found.gradients()

    (dS,), found = _there_and_back(inputs, do, (dS,), back, arithmetic)
    return shared(inputs, found, dS, arithmetic)


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

    def back(carry: Tensors, x: Tokens, token: Token) -> tuple[Tensors, Tensors]:
        found = retreat(carry[0], x, token, inputs.factor, arithmetic)
        terms, size = term_sizes(carry[1], x, token, found, arithmetic)
        return (found.before, size), (*found.gradients(), terms)

    (dS, size), (*found, terms) = _there_and_back(inputs, do, (dS, dS.abs()), back, arithmetic)
    return shared(inputs, found, dS, arithmetic), Terms(over_channels(inputs, terms), size)


def _there_and_back(
    inputs: Inputs, do: Tensor, end: Tensors, back: Step, arithmetic: Arithmetic
) -> tuple[Tensors, Tensors]:
    def there(carry: Tensors, x: Tokens) -> tuple[Tensors, Token]:
        token = advance(carry[0], x, arithmetic)
        return (token.after,), token

    return there_and_back(
        inputs,
        start=(inputs.state.to(do.dtype),),
        there=there,
        end=end,
        back=back,
        others=(do,),
        rounds=arithmetic is not NATIVE,
        samples=arithmetic.samples,
    )


def term_sizes(
    size: Tensor, x: Tokens, token: Token, found: Back, arithmetic: Arithmetic
) -> tuple[Tensor, Tensor]:
    """The sizes of the terms that meet in dg of a token, and, in the gradient of the state before
    it, from that after it.
    """
    terms = (found.d_decayed * token.decayed).abs().sum(-1)[..., None, :] + (x.q * found.dq).abs()
    terms = terms + (x.k * found.written).abs() + (x.k * found.read).abs()
    largest = torch.maximum(size, found.P.abs() + (found.P - found.d_decayed).abs())
    return terms, largest * arithmetic.exp(x.g).transpose(-1, -2)


def shared(
    inputs: Inputs, found: Sequence[Tensor], dS: Tensor, arithmetic: Arithmetic
) -> Gradients[Tensor]:
    """Those of keys that value heads share, and of gates that channels share, summed over them."""
    dq, dk, dv, dg, dbeta = found
    dq, dk = (
        arithmetic.store(name, over_key_heads(inputs, x, arithmetic))
        for name, x in (("dq", dq), ("dk", dk))
    )
    return Gradients(dq, dk, dv, over_channels(inputs, dg), dbeta, dS)


@dataclass(frozen=True)
class Back:
    """A token's effect on the state's gradient: after it, d_decayed = dL/dS~, before it.

    dp [.., 1, V] is the gradient of u; written = P u and read = beta S~ p [.., 1, K] are the two
    terms of dk.
    """

    P: Tensor
    d_decayed: Tensor
    before: Tensor
    dp: Tensor
    written: Tensor
    read: Tensor
    dq: Tensor
    dk: Tensor
    dv: Tensor
    dg: Tensor
    dbeta: Tensor

    def gradients(self) -> Tensors:
        """Those of the token itself: dq, dk, dv, dg, dbeta."""
        return self.dq, self.dk, self.dv, self.dg, self.dbeta


def retreat(dS: Tensor, x: Tokens, token: Token, scale: float, arithmetic: Arithmetic) -> Back:
    """One token backwards. Math: section 5. Stores P, dp, dv, dbeta, dq_head, dk_head, dg, dS."""
    store, dot = arithmetic.store, arithmetic.dot
    q, k, beta, do = x.q, x.k, x.beta[..., None], x.others[0]
    P = store("P", dS + scale * q.transpose(-1, -2) * do)
    dp = store("dp", dot(k, P))
    dv = store("dv", beta * dp)
    dbeta = store("dbeta", arithmetic.row_sum(dp * token.residual))
    dq = store("dq_head", scale * dot(do, token.after.transpose(-1, -2)))
    written = dot(token.u, P.transpose(-1, -2))
    read = beta * dot(dp, token.decayed.transpose(-1, -2))
    dk = store("dk_head", written - read)
    d_decayed = P - beta * k.transpose(-1, -2) * dp
    dg = store("dg", arithmetic.row_sum(d_decayed * token.decayed)[..., None, :])
    before = store("dS", d_decayed * arithmetic.exp(x.g).transpose(-1, -2))
    return Back(P, d_decayed, before, dp, written, read, dq, dk, dv, dg, dbeta)
