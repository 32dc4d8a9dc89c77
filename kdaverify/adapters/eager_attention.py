"""Reference implementations of attention in a few lines of torch, fp32 to the one rounding."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.operator_kernel import shipped


def softmax_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    softmax_scale: float,
    causal: bool,
    sink: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """o [s_q, H, d_v] and lse [H, s_q] of one request; q [s_q, H, d_k], k and v [s_k, h_kv, d],
    sink [H]. LSE is without the sink.
    """
    group, (s_q, s_k) = q.shape[1] // k.shape[1], (q.shape[0], k.shape[0])
    heads = [x.float().transpose(0, 1) for x in (q, k, v)]
    k_, v_ = (x.repeat_interleave(group, 0) for x in heads[1:])
    scores = heads[0] @ k_.mT * softmax_scale
    if causal:
        hidden = torch.ones(s_q, s_k, dtype=torch.bool).triu(s_k - s_q + 1)
        scores = scores.masked_fill(hidden, -torch.inf)
    weights, total, lse = _weights(scores)
    if sink is not None:
        column = sink.float()[:, None, None].expand(-1, s_q, 1)
        every, total, _ = _weights(torch.cat((scores, column), -1))
        weights = every[..., :-1]
    o = weights @ v_ / total.masked_fill(total == 0, 1.0)
    return o.transpose(0, 1).to(q.dtype), lse.squeeze(-1)


def _weights(scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Relative to the largest of a row, their sum, and the LSE of the row."""
    # A row that sees no key has a maximum of -inf, and no key at all none.
    empty = scores.new_full((*scores.shape[:2], 1), 0.0)
    top = scores.amax(-1, keepdim=True) if scores.shape[-1] else empty
    top = top.detach().masked_fill(torch.isneginf(top), 0.0)
    weights = (scores - top).exp()
    total = weights.sum(-1, keepdim=True)
    return weights, total, top + total.log()


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    cu_seqlens_q: Tensor | None,
    cu_seqlens_k: Tensor | None,
    softmax_scale: float,
    causal: bool,
    sink: Tensor | None,
) -> tuple[Tensor, Tensor]:
    options: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal, "sink": sink}
    if cu_seqlens_q is None or cu_seqlens_k is None:
        parts = [softmax_attention(*one, **options) for one in zip(q, k, v, strict=True)]
        o, lse = zip(*parts, strict=True)
        return torch.stack(o), torch.stack(lse)
    spans = zip(pairwise(cu_seqlens_q.tolist()), pairwise(cu_seqlens_k.tolist()), strict=True)
    parts = [softmax_attention(q[a:b], k[c:d], v[c:d], **options) for (a, b), (c, d) in spans]
    o, lse = zip(*parts, strict=True)
    spare = len(q) - sum(map(len, o))
    behind = q.new_zeros(spare, q.shape[1], v.shape[2])
    return torch.cat((*o, behind)), torch.cat((*lse, q.new_zeros(q.shape[1], spare).float()), 1)


def _mla_decode(
    q: Tensor,
    cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    *,
    d_v: int,
    softmax_scale: float,
    causal: bool,
    sink: Tensor | None,
) -> tuple[Tensor, Tensor]:
    page, parts = cache.shape[1], list[tuple[Tensor, Tensor]]()
    options: dict[str, Any] = {"softmax_scale": softmax_scale, "causal": causal, "sink": sink}
    for one, table, length in zip(q, block_table, cache_seqlens.tolist(), strict=True):
        k = cache[table[: -(-length // page)].long()].flatten(0, 1)[:length]
        parts.append(softmax_attention(one, k, k[..., :d_v], **options))
    o, lse = zip(*parts, strict=True)
    return torch.stack(o), torch.stack(lse)


def _merge(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """Weights are relative to the maximum: relative to LSE they have its rounding."""
    top = torch.maximum(lse_a, lse_b).nan_to_num(neginf=0.0)
    a, b = ((lse - top).exp() for lse in (lse_a, lse_b))
    total = a + b
    parts = a.mT[..., None] * o_a.float() + b.mT[..., None] * o_b.float()
    o = parts / total.masked_fill(total == 0, 1.0).mT[..., None]
    return o.to(o_a.dtype), top + total.log()


_adapter = partial(shipped, dtypes=("fp32", "bf16", "fp16"), contract="math-fp32")
ATTENTION: Final = _adapter("attention", _attention, "eager-attention", lse_gradient="given")
MLA_DECODE: Final = _adapter("mla_decode", _mla_decode, "eager-mla-decode")
MERGE: Final = _adapter("merge_state", _merge, "eager-merge")
