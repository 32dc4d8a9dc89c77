"""Keys of weight 0 before those of a call of attention: it is long, and returns what it does
without them.

Column d_k - 1 of every query is large and that of the call's own keys 0, so that their scores stay;
that of the keys before is large and negative. exp(-500) is 0 in every format.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.checks.calls.case import Unreachable
from oracles.attention.calls import AttentionCall, MlaDecodeCall
from oracles.attention.sparse import SparseCall

LOGIT: Final = -512.0
"""Of the keys before, beside the product of their other columns."""
SIDE: Final = 64.0
"""The size of the column in queries."""


def check_first(pairs: Sequence[tuple[int, int]]) -> None:
    """Every row of the first request has keys of its own: of far ones alone LSE is another.

    Raises:
        Unreachable: one may have none.
    """
    s_q, s_k = pairs[0]
    if s_k < s_q:
        raise Unreachable("a query of its first request sees no key")


def before_pages(call: MlaDecodeCall, count: int) -> tuple[MlaDecodeCall, MlaDecodeCall]:
    """A page of far keys, which the table names again and again before those of request 0."""
    page, pages = call.cache.shape[1], len(call.cache)
    call = replace(call, q=_apart(call.q), cache=_none(call.cache))
    far = _far(call.cache[:1], call.softmax_scale)
    front = torch.full((count // page,), pages, dtype=call.block_table.dtype)
    own = call.block_table[0]
    rest = torch.nn.functional.pad(call.block_table[1:], (0, len(front)), value=int(own[-1]))
    lengths = call.cache_seqlens.clone()
    lengths[0] += len(front) * page
    table = torch.cat((torch.cat((front, own))[None], rest))
    cache = torch.cat((call.cache, far))
    return call, replace(call, cache=cache, block_table=table, cache_seqlens=lengths)


def before_lists(call: SparseCall, count: int) -> tuple[SparseCall, SparseCall]:
    """A page of far keys, whose first slot every list that names a key names again and again."""
    call = replace(call, q=_apart(call.q), cache=_none(call.cache))
    slot = call.cache.shape[0] * call.cache.shape[1]
    front = torch.where(call.empty, -1, slot)[..., None].to(call.indices).expand(-1, -1, count)
    # what named nothing could name the page
    own = call.indices.masked_fill(call.indices >= slot, -1)
    given: dict[str, Any] = {
        "cache": torch.cat((call.cache, _far(call.cache[:1], call.softmax_scale))),
        "indices": torch.cat((front, own), 2),
    }
    if call.topk_length is not None:
        longer = call.topk_length + count
        given["topk_length"] = torch.where(call.topk_length > 0, longer, call.topk_length)
    return call, replace(call, **given)


def before_rows(call: AttentionCall, count: int) -> tuple[AttentionCall, AttentionCall]:
    """Far keys before those of every entry of a batch, or of the first sequence of a pack."""
    call = replace(call, q=_apart(call.q), k=_none(call.k))
    far, value = _far(call.k[:, :1], call.softmax_scale), call.v[:, :1]
    k, v = (
        torch.cat((x.expand(-1, count, -1, -1), own), 1)
        for x, own in ((far, call.k), (value, call.v))
    )
    given: dict[str, Any] = {"k": k, "v": v}
    if call.cu_seqlens_k is not None:
        shifts = torch.full_like(call.cu_seqlens_k, count)
        shifts[0] = 0
        given["cu_seqlens_k"] = call.cu_seqlens_k + shifts
    return call, replace(call, **given)


def _apart(q: Tensor) -> Tensor:
    return torch.cat((q[..., :-1], torch.full_like(q[..., -1:], SIDE)), -1)


def _none(k: Tensor) -> Tensor:
    return torch.cat((k[..., :-1], torch.zeros_like(k[..., -1:])), -1)


def _far(k: Tensor, scale: float) -> Tensor:
    """Keys, in the shape of those given, of ordinary numbers but for the last column."""
    chance = torch.Generator().manual_seed(0)
    rows = torch.randn(k.shape, generator=chance).to(k)
    return torch.cat((rows[..., :-1], torch.full_like(rows[..., -1:], LOGIT / scale / SIDE)), -1)
