"""A backward that starts from states that a forward of another contract left.

Such a kernel keeps the state of its forward before every block of tokens, as that stores it, and
makes the rest again on the way back: what a block's states lost there, its gradients have too.
Without these a chunk kernel in bf16 whose backward goes token by token from its stored states fits
no contract: that of the recurrence knows no state in bf16, that of chunks no sum of one token.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.pipeline import Way, run_backward, run_form
from oracles.gradients import Cotangents, Gradients, over_channels, over_key_heads
from oracles.inputs import InputError, Inputs
from oracles.scan import BLOCK, scan
from oracles.tokens import Tensors, Tokens

SUMMED = ("dq", "dk")
"""Gradients that are stored once, summed over the value heads of a key head."""


class Half(NamedTuple):
    """One direction of a kernel: what it declares, and how it computes."""

    contract: Contract
    way: Way


def resumed_backward(
    there: Half, back: Half, inputs: Inputs, cotangents: Cotangents
) -> Gradients[Tensor] | None:
    """Gradients by `back`, block by block, each from the state that `there` had before it.

    Returns:
        None where a state, or its gradient, overflows between two blocks.
    """
    if not any(inputs.lengths):
        return run_backward(back.contract, inputs, cotangents, back.way)
    size = block(there.contract, back.contract)
    try:
        return _walked_back(back, inputs, cotangents, size, _states(there, inputs, size))
    except InputError:
        # A block is a call of its own, whose states have to be finite.
        return None


def block(forward: Contract, backward: Contract) -> int:
    """Tokens between two states that are handed over: whole chunks of both."""
    chunks = math.lcm(forward.chunk_size, backward.chunk_size)
    return chunks if chunks > 1 else BLOCK


def _states(there: Half, inputs: Inputs, size: int) -> list[Tensor]:
    """The state [n, HV, K, V] before every block, as it is stored for the backward."""
    contract, way = there
    before: list[Tensor] = []

    def body(carry: Tensors, tokens: Tokens) -> tuple[Tensors, Tensors]:
        (state,) = carry
        before.append(state if contract.form == "recurrent" else way.arithmetic.store("h", state))
        _, after = run_form(
            contract,
            _call(tokens, state, inputs.factor),
            dtype=way.dtype,
            arithmetic=way.arithmetic,
            stages=way.stages,
        )
        return (after,), ()

    scan(inputs, size, (inputs.state.to(way.dtype),), body, dtype=way.dtype)
    return before


def _walked_back(
    back: Half, inputs: Inputs, cotangents: Cotangents, size: int, before: list[Tensor]
) -> Gradients[Tensor]:
    contract, way = back
    store = way.arithmetic.store

    def of_value_heads(name: str, x: Tensor) -> Tensor:
        return x if name in SUMMED else store(name, x)

    of_block = way._replace(arithmetic=replace(way.arithmetic, store=of_value_heads))
    do, dS = cotangents.of(inputs, way.dtype)

    def body(carry: Tensors, tokens: Tokens) -> tuple[Tensors, Tensors]:
        call = _call(tokens, before.pop().to(way.dtype), inputs.factor)
        loss = Cotangents(tokens.others[0].transpose(1, 2), carry[0])
        found = run_backward(contract, call, loss, of_block)
        outputs = (found.dq, found.dk, found.dv, found.dg, found.dbeta)
        return (found.d_initial_state,), tuple(x.transpose(1, 2) for x in outputs)

    (dS,), (dq, dk, dv, dg, dbeta) = scan(
        inputs, size, (dS,), body, dtype=way.dtype, others=(do,), reverse=True
    )
    dq, dk = (
        store(name, over_key_heads(inputs, x, way.arithmetic))
        for name, x in zip(SUMMED, (dq, dk), strict=True)
    )
    return Gradients(dq, dk, dv, over_channels(inputs, dg), dbeta, dS)


def _call(tokens: Tokens, S: Tensor, scale: float) -> Inputs:
    """A block of tokens as a batch of dense sequences, every value head with own keys."""
    q, k, v, g, beta = (
        x.transpose(1, 2) for x in (tokens.q, tokens.k, tokens.v, tokens.g, tokens.beta)
    )
    return Inputs(q, k, v, g, beta, scale=scale, initial_state=S)
