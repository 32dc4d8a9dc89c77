"""Plain functions of operators in torch, as a port begins: right, in the default conventions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import silu


def short_conv(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    initial_state: Tensor | None,
    activation: str | None,
) -> tuple[Tensor, Tensor]:
    (B, T, D), W = x.shape, weight.shape[1]
    state = torch.zeros(B, D, W) if initial_state is None else initial_state.float()
    row = torch.cat([state, x.float().mT], 2)
    z = sum(row[..., 1 + j : 1 + j + T] * weight[:, j, None].float() for j in range(W))
    z = z if bias is None else z + bias.float()[:, None]
    assert isinstance(z, Tensor)
    y = silu(z) if activation == "silu" else z
    return y.mT.to(x.dtype), row[..., -W:].to(x.dtype)


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, activation: str
) -> Tensor:
    x32, z = x.float(), gate.float()
    normed = x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * weight.float()
    return (normed * (silu(z) if activation == "silu" else z.sigmoid())).to(x.dtype)


def _softmax(scores: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    s_q, s_k = scores.shape[-2:]
    if causal:
        hidden = torch.ones(s_q, s_k, dtype=torch.bool).triu(s_k - s_q + 1)
        scores = scores.masked_fill(hidden, -math.inf)
    lse = scores.logsumexp(-1)
    return (scores - lse[..., None]).exp().nan_to_num(0.0), lse


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, softmax_scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    k, v = (x.float().repeat_interleave(q.shape[2] // x.shape[2], dim=2) for x in (k, v))
    weights, lse = _softmax(torch.einsum("bqhd,bkhd->bhqk", q.float(), k) * softmax_scale, causal)
    return torch.einsum("bhqk,bkhd->bqhd", weights, v).to(q.dtype), lse


def mla_decode(
    q: Tensor,
    cache: Tensor,
    block_table: Tensor,
    cache_seqlens: Tensor,
    *,
    d_v: int,
    softmax_scale: float,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    pages = [
        table[: -(-length // cache.shape[1])]
        for table, length in zip(block_table.long(), cache_seqlens.tolist(), strict=True)
    ]
    rows = [
        cache[page].flatten(0, 1)[:length][None]
        for page, length in zip(pages, cache_seqlens.tolist(), strict=True)
    ]
    found = [
        attention(x[None], kv, kv[..., :d_v], softmax_scale=softmax_scale, causal=causal)
        for x, kv in zip(q, rows, strict=True)
    ]
    return torch.cat([o for o, _ in found]), torch.cat([lse for _, lse in found])


def sparse_attention(
    q: Tensor,
    cache: Tensor,
    indices: Tensor,
    *,
    topk_length: Tensor | None,
    d_v: int,
    softmax_scale: float,
) -> tuple[Tensor, Tensor]:
    B, s_q, H, _ = q.shape
    rows, most = cache.flatten(0, 1), indices.shape[2]
    o, lse = q.new_zeros(B, s_q, H, d_v), torch.full((B, H, s_q), -math.inf)
    for b, i in ((b, i) for b in range(B) for i in range(s_q)):
        kept = indices[b, i, : most if topk_length is None else int(topk_length[b])]
        k = rows[kept[kept >= 0].long()][None]
        if k.shape[1]:
            one = q[b : b + 1, i : i + 1]
            found = attention(one, k, k[..., :d_v], softmax_scale=softmax_scale, causal=False)
            o[b, i], lse[b, :, i] = found[0][0, 0], found[1][0, :, 0]
    return o, lse


def merge_state(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    top = torch.maximum(lse_a, lse_b).nan_to_num(neginf=0.0)
    a, b = (lse_a - top).exp(), (lse_b - top).exp()
    parts = a.mT[..., None] * o_a + b.mT[..., None] * o_b
    total = (a + b).mT[..., None]
    return torch.where(total > 0, parts / total, 0.0).to(o_a.dtype), top + (a + b).log()


PORTS: Final[dict[str, Callable[..., Any]]] = {
    "short_conv": short_conv,
    "gated_rms_norm": gated_rms_norm,
    "attention": attention,
    "mla_decode": mla_decode,
    "sparse_attention": sparse_attention,
    "merge_state": merge_state,
}
