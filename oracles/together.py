"""Calls of one shape as a single one, and taken apart: small problems cost by number."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs
from oracles.tensors import SIGNATURE, TOKENS


def together(calls: Sequence[Inputs]) -> Inputs:
    """Further entries or sequences of a call; what lies past the last offset is left out.

    Args:
        calls: of equal shapes, lengths and scale, all with an initial state or all without.
    """
    first = calls[0]
    tokens = {
        name: tokens_together([getattr(call, name) for call in calls], first) for name in TOKENS
    }
    state = None if first.initial_state is None else torch.cat([call.state for call in calls])
    if first.cu_seqlens is None:
        offsets = None
    else:
        offsets = torch.tensor([0, *first.lengths * len(calls)]).cumsum(0)
    return replace(first, **tokens, initial_state=state, cu_seqlens=offsets)


def tokens_together(tensors: Sequence[Tensor], one: Inputs) -> Tensor:
    """Tensors of tokens of calls like `one`, as `together` lays them out."""
    if one.cu_seqlens is None:
        return torch.cat([*tensors])
    used = sum(one.lengths)
    return torch.cat([x[:, :used] for x in tensors], dim=1)


def cotangents_together(given: Sequence[Cotangents], one: Inputs) -> Cotangents:
    """Cotangents of as many calls like `one`, zeros where absent, in float64."""
    do, dS = zip(*(cotangents.of(one) for cotangents in given), strict=True)
    return Cotangents(tokens_together(do, one), torch.cat(dS))


def tokens_apart(x: Tensor, one: Inputs, number: int) -> list[Tensor]:
    """What the calls together gave for their tokens, call by call, zeros on padding."""
    if one.cu_seqlens is None:
        return list(x.unflatten(0, (number, one.B)))
    used = sum(one.lengths)
    padding = x.new_zeros(1, one.T - used, *x.shape[2:])
    return [
        torch.cat((piece, padding), dim=1) for piece in x.unflatten(1, (number, used)).unbind(1)
    ]


def states_apart(x: Tensor, one: Inputs, number: int) -> list[Tensor]:
    """Likewise for states, one for every sequence."""
    return list(x.unflatten(0, (number, one.N)))


def gradients_apart(found: Gradients[Tensor], one: Inputs, number: int) -> list[Gradients[Tensor]]:
    """Likewise for gradients."""
    *tokens, states = (
        states_apart(x, one, number) if SIGNATURE.is_state(name) else tokens_apart(x, one, number)
        for name, x in found.named().items()
    )
    return [Gradients(*pieces) for pieces in zip(*tokens, states, strict=True)]
