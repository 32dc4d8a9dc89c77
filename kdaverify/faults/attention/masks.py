"""Faults of masks, causality and tails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.attention.kernel import (
    EVERY,
    AttentionPatch,
    KernelRequest,
    bottom_right,
    patched,
)
from kdaverify.faults.fault import Fault
from oracles.attention.pipeline import AttentionPipeline

HONOURED: Final = 64
"""Keys up to which an emulated mask counts, instead of 512."""
WHOLE: Final = 64
"""Keys of a tile that is read whole."""
SPLIT: Final = 1024
"""Keys of a split, and keys past which two queries have a kernel of their own."""
SEGMENT: Final = 2048
"""Queries of a segment of the backward."""
BLOCK: Final = 64
Call = Callable[..., Any]


def top_left(request: KernelRequest) -> Tensor:
    """Query i sees keys 0 to i, however many keys there are."""
    i, j = torch.arange(request.s_q)[:, None], torch.arange(request.s_k)
    return (j <= i) | (not request.causal)


def always(request: KernelRequest) -> Tensor:
    return bottom_right(replace(request, causal=True))


def unmasked(request: KernelRequest) -> Tensor:
    return bottom_right(replace(request, causal=False))


def _up_to_a_key(request: KernelRequest) -> Tensor:
    found = bottom_right(request)
    found[:, HONOURED:] = True
    return found


def _multiplied(run: AttentionPipeline, P: Tensor, v: Tensor, _: Tensor) -> Tensor:
    """0 times NaN is NaN."""
    return run.arithmetic.dot(P, v)


def _too_many_cleared(request: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    o = o.clone()
    o[:, : 2 * request.empty_rows] = 0
    return o, lse


def _tail_of_an_expanded_tensor(right: Call, given: dict[str, Any]) -> Any:
    """The last key is the one before it, where a tensor has a stride of 0."""

    def read(x: Tensor) -> Tensor:
        keys = x.shape[-3]
        if 0 not in x.stride() or keys < 2:
            return x
        x = x.clone()
        x[..., -1, :, :] = x[..., -2, :, :]
        return x

    return right(**{**given, "k": read(given["k"]), "v": read(given["v"])})


def _rows_left_out(request: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The first two rows of the upper heads are not stored."""
    if request.packed and request.q.shape[-1] == 192:
        o = o.clone()
        o[len(o) // 2 :, :2] = 0
    return o, lse


def _one_table_row_a_token(right: Call, given: dict[str, Any]) -> Any:
    """Every query token as a request, with table and length of a row by the token's number."""
    q, table, lengths = given["q"], given["block_table"], given["cache_seqlens"]
    B, s_q, H, d_k = q.shape
    if s_q == 1:
        return right(**given)
    token = torch.arange(B * s_q)
    row = token.clamp(max=B - 1)
    behind = (s_q - 1 - token % s_q) * bool(given["causal"])
    there = {
        "q": q.reshape(B * s_q, 1, H, d_k),
        "block_table": table[row],
        "cache_seqlens": (lengths[row] - behind).clamp(min=0),
        "causal": False,
    }
    o, lse = right(**{**given, **there})
    return o.reshape(B, s_q, H, -1), lse.reshape(B, s_q, H).transpose(1, 2).contiguous()


def _border_of_the_last_split(request: KernelRequest) -> Tensor:
    """Of up to 128 queries and 4,096 keys the mask is applied in the last split of 1,024 alone."""
    seen = bottom_right(request)
    if not request.causal or not 1 < request.s_q <= 128 or request.s_k < 4 * SPLIT:
        return seen
    return seen | (torch.arange(request.k.shape[1]) < (request.s_k - 1) // SPLIT * SPLIT)


def _border_of_segments(request: KernelRequest) -> Tensor:
    """From the third segment of 2,048 queries on the border is that of the segment's last one."""
    seen = bottom_right(request)
    if request.causal and request.s_q > 2 * SEGMENT:
        seen = seen.clone()
        seen[2 * SEGMENT :] = seen[-1]
    return seen


def _two_queries_by_the_first(request: KernelRequest) -> Tensor:
    """Of two queries and over 1,024 keys, whole blocks up to the border of the first are read."""
    seen = bottom_right(request)
    if request.s_q != 2 or not request.causal or request.s_k <= SPLIT:
        return seen
    end = -(-(request.s_k - 1) // BLOCK) * BLOCK
    return seen & (torch.arange(request.k.shape[1]) < end)


def _second_row(request: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The second query's mask is that of the first block: its row sum is 0 on a long cache."""
    if request.s_q != 2 or request.s_k <= HONOURED:
        return o, lse
    o, lse = o.clone(), lse.clone()
    o[:, 1], lse[:, 1] = torch.nan, torch.nan
    return o, lse


_fault = partial(Fault, dtypes=EVERY, stage="scores")
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="attention-M1", kind="B", title="causal mask aligned top-left",
           reference="Dao-AILab/flash-attention#282", operator="attention",
           trigger="causal, s_q != s_k", outputs=("o", "lse"),
           patch=lambda _: AttentionPatch(visible=top_left)),
    _fault(id="BORDER-splits", kind="B", title="the last split of 1,024 keys alone is masked",
           reference="class: borders of long calls", operator="attention",
           trigger="causal, 2 to 128 queries, over 4,096 keys, a border across two splits",
           outputs=("o", "lse"), patch=lambda _: AttentionPatch(visible=_border_of_the_last_split)),
    _fault(id="BORDER-segments", stage="dq", kind="B",
           title="the backward masks later segments of 2,048 queries by their last one",
           reference="class: borders of long calls", operator="attention",
           trigger="causal, over 4,096 queries, gradients", outputs=("dq", "dk", "dv"),
           patch=lambda _: AttentionPatch(visible_backward=_border_of_segments)),
    _fault(id="DRAFT-block", kind="B",
           title="blocks are read up to the border of the first of two queries",
           reference="class: borders of long calls", operator="mla_decode",
           trigger="causal, two queries, over 1,024 keys, one of them in a block of its own",
           outputs=("o", "lse"), patch=lambda _: AttentionPatch(visible=_two_queries_by_the_first)),
    _fault(id="attention-M2", stage="dq", kind="B",
           title="the backward masks top-left, the forward bottom-right", reference="ffpa-attn#300",
           operator="attention", trigger="causal, s_q != s_k, gradients",
           outputs=("dq", "dk", "dv"), patch=lambda _: AttentionPatch(visible_backward=top_left)),
    _fault(id="attention-M3", stage="dq", kind="B", title="the backward ignores the causal flag",
           reference="triton-lang/triton#4541, #5660, #7216", operator="attention",
           trigger="causal off, gradients", outputs=("dq", "dk", "dv"),
           patch=lambda _: AttentionPatch(visible_backward=always)),
    _fault(
        id="attention-M4",
        kind="B",
        title="the causal flag has no effect where one block holds all keys",
        reference="jax-ml/jax#19237",
        operator="attention",
        trigger="causal, at most 128 keys",
        outputs=("o", "lse"),
        patch=lambda _: AttentionPatch(
            visible=lambda r: unmasked(r) if r.s_k <= 128 else bottom_right(r)
        ),
    ),
    _fault(id="attention-M5", kind="B",
           title="the mask counts up to a key (emulated: 64 instead of 512)",
           reference="vllm-project/vllm-ascend#15503", operator="attention",
           trigger="causal, more than 64 keys", outputs=("o", "lse"),
           patch=lambda _: AttentionPatch(visible=_up_to_a_key)),
    _fault(id="attention-M6", stage="partial", kind="A",
           title="masked values are multiplied by 0 instead of skipped",
           reference="pytorch/pytorch#101967, #141128, ROCm/aiter#5401", operator="attention",
           trigger="NaN or inf in a masked value, or in rows behind a request in its last tile",
           outputs=("o",), patch=lambda _: patched(product=_multiplied, tile=WHOLE)),
    _fault(id="attention-M7", stage="partial", kind="B",
           title="twice as many rows cleared as see no key", reference="flash-attention-npu#238",
           operator="attention", trigger="causal, s_k < s_q", outputs=("o",),
           patch=lambda _: AttentionPatch(returned=_too_many_cleared)),
    _fault(id="attention-M8", stage="gather", kind="B",
           title="the tail of an expanded tensor is read wrongly",
           reference="pytorch/pytorch#191937", operator="attention",
           trigger="k or v with a stride of 0", outputs=("o",),
           patch=lambda _: AttentionPatch(attention=_tail_of_an_expanded_tensor)),
    _fault(id="attention-M9", stage="partial", kind="B",
           title="the first rows of the upper heads are not stored",
           reference="Dao-AILab/flash-attention#1214", operator="attention",
           trigger="packed, d_k 192", outputs=("o",),
           patch=lambda _: AttentionPatch(returned=_rows_left_out)),
    _fault(id="attention-M10", stage="gather", kind="B",
           title="table and lengths are indexed by token instead of request",
           reference="vllm-project/vllm#51065, #51848", operator="mla_decode",
           trigger="several query tokens a request, several requests", outputs=("o", "lse"),
           patch=lambda _: AttentionPatch(decode=_one_table_row_a_token)),
    _fault(id="attention-M11", kind="B", title="NaN in the second row of two queries",
           reference="FlashMLA-ETAP#2", operator="mla_decode", trigger="s_q = 2, more than 64 keys",
           outputs=("o", "lse"), patch=lambda _: AttentionPatch(returned=_second_row)),
)  # fmt: skip
