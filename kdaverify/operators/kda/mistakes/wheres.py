"""Where in a call a mistake is made: everywhere, or in some chunks, rows or heads alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.operators.kda.mistakes.changes import Change, Kind
from kdaverify.operators.kda.mistakes.copies import Mistake
from kdaverify.operators.kda.mistakes.quantities import Quantities

BLOCK: Final = 16
"""Rows of a tile in most kernels."""


@dataclass(frozen=True)
class Where:
    """A part of a call.

    Args:
        words: in words, after the mistake.
        chosen: quantities of a chunk -> where the mistake is made, [n, HV or 1, C or 1].
    """

    words: str
    chosen: Callable[[Quantities], Tensor]


def _full(q: Quantities) -> Tensor:
    return q.valid[..., 0].all(-1, keepdim=True)


def _rows(q: Quantities) -> Tensor:
    return torch.arange(q.valid.shape[-2]).expand(q.valid.shape[:-1])


def _heads(q: Quantities) -> Tensor:
    return torch.arange(q.beta.shape[1])[None, :, None]


WHERES: Final = (
    Where("only in a chunk that is not full", lambda q: ~_full(q)),
    Where("only in full chunks", _full),
    Where("only in chunks after the first", lambda q: torch.tensor(q.chunk > 0)[None, None, None]),
    Where("only in the first chunk", lambda q: torch.tensor(q.chunk == 0)[None, None, None]),
    Where("only at the first token of a chunk", lambda q: _rows(q) == 0),
    Where("only after the first token of a chunk", lambda q: _rows(q) > 0),
    Where("only at the last token of a chunk", lambda q: _rows(q) == q.valid.sum(-2) - 1),
    Where(f"only from token {BLOCK} of a chunk on", lambda q: _rows(q) >= BLOCK),
    Where(f"only in the first {BLOCK} tokens of a chunk", lambda q: _rows(q) < BLOCK),
    Where("only in head 0", lambda q: _heads(q) == 0),
    Where("only in heads other than 0", lambda q: _heads(q) > 0),
)


def restricted(mistake: Mistake, where: Where) -> Mistake | None:
    """The mistake in a part of the call; None where its tensor has no such parts."""
    kind = mistake.place.kind

    def apply(x: Tensor, q: Quantities) -> Tensor:
        right = torch.zeros_like(x) if mistake.place.as_it_is else x
        return torch.where(_over(where.chosen(q), kind), mistake.change.apply(x, q), right)

    if kind is Kind.STATE and "token" in where.words:
        return None
    return replace(mistake, change=Change(mistake.change.words, apply), where=where.words)


def _over(chosen: Tensor, kind: Kind) -> Tensor:
    """[n, HV, C] as it broadcasts to a tensor of a kind."""
    return chosen if kind is Kind.SCALAR else chosen[..., None]
