"""Faults of masks, causality and tails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.attention.fault import AttentionFault
from kdaverify.faults.attention.kernel import AttentionPatch, Request, bottom_right, patched
from oracles.attention.pipeline import Pipeline

HONOURED: Final = 64
"""Keys up to which an emulated mask counts, instead of 512."""
Call = Callable[..., Any]


def top_left(request: Request) -> Tensor:
    """Query i sees keys 0 to i, however many keys there are."""
    i, j = torch.arange(request.s_q)[:, None], torch.arange(request.s_k)
    return (j <= i) | (not request.causal)


def always(request: Request) -> Tensor:
    return bottom_right(replace(request, causal=True))


def unmasked(request: Request) -> Tensor:
    return bottom_right(replace(request, causal=False))


def _up_to_a_key(request: Request) -> Tensor:
    found = bottom_right(request)
    found[:, HONOURED:] = True
    return found


def _multiplied(run: Pipeline, P: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """0 times NaN is NaN."""
    del visible
    return run.arithmetic.dot(P, v)


def _too_many_cleared(request: Request, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
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


def _rows_left_out(request: Request, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The first two rows of the upper heads are not stored."""
    if request.packed and request.q.shape[-1] == 192:
        o = o.clone()
        o[len(o) // 2 :, :2] = 0
    return o, lse


def _one_table_row_a_token(right: Call, given: dict[str, Any]) -> Any:
    """Every query token as a request, whose table and length are those of a row by the token's
    number.
    """
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


def _second_row(request: Request, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The second query's mask is that of the first block: its row sum is 0 on a long cache."""
    if request.s_q != 2 or request.s_k <= HONOURED:
        return o, lse
    o, lse = o.clone(), lse.clone()
    o[:, 1], lse[:, 1] = torch.nan, torch.nan
    return o, lse


_fault: Any = partial(AttentionFault, stage="scores")
FAULTS: Final[tuple[AttentionFault, ...]] = (
    _fault(
        id="M1",
        title="causal mask aligned top-left",
        reference="Dao-AILab/flash-attention#282",
        op="attention",
        trigger="causal, s_q != s_k",
        outputs=("o", "lse"),
        make=lambda: AttentionPatch(visible=top_left),
    ),
    _fault(
        id="M2",
        title="the backward masks top-left, the forward bottom-right",
        reference="ffpa-attn#300",
        op="attention",
        trigger="causal, s_q != s_k, gradients",
        outputs=("dq", "dk", "dv"),
        make=lambda: AttentionPatch(visible_backward=top_left),
    ),
    _fault(
        id="M3",
        title="the backward ignores the causal flag",
        reference="triton-lang/triton#4541, #5660, #7216",
        op="attention",
        trigger="causal off, gradients",
        outputs=("dq", "dk", "dv"),
        make=lambda: AttentionPatch(visible_backward=always),
    ),
    _fault(
        id="M4",
        title="the causal flag has no effect where one block holds all keys",
        reference="jax-ml/jax#19237",
        op="attention",
        trigger="causal, at most 128 keys",
        outputs=("o", "lse"),
        make=lambda: AttentionPatch(
            visible=lambda r: unmasked(r) if r.s_k <= 128 else bottom_right(r)
        ),
    ),
    _fault(
        id="M5",
        title="the mask counts up to a key (emulated: 64 instead of 512)",
        reference="vllm-project/vllm-ascend#15503",
        op="attention",
        trigger="causal, more than 64 keys",
        outputs=("o", "lse"),
        make=lambda: AttentionPatch(visible=_up_to_a_key),
    ),
    _fault(
        id="M6",
        title="masked values are multiplied by 0 instead of skipped",
        reference="pytorch/pytorch#101967, #141128",
        op="attention",
        trigger="NaN or inf in a masked value",
        outputs=("o",),
        make=lambda: patched(product=_multiplied),
    ),
    _fault(
        id="M7",
        title="twice as many rows cleared as see no key",
        reference="flash-attention-npu#238",
        op="attention",
        trigger="causal, s_k < s_q",
        outputs=("o",),
        make=lambda: AttentionPatch(returned=_too_many_cleared),
    ),
    _fault(
        id="M8",
        title="the tail of an expanded tensor is read wrongly",
        reference="pytorch/pytorch#191937",
        op="attention",
        trigger="k or v with a stride of 0",
        outputs=("o",),
        make=lambda: AttentionPatch(attention=_tail_of_an_expanded_tensor),
    ),
    _fault(
        id="M9",
        title="the first rows of the upper heads are not stored",
        reference="Dao-AILab/flash-attention#1214",
        op="attention",
        trigger="packed, d_k 192",
        outputs=("o",),
        make=lambda: AttentionPatch(returned=_rows_left_out),
    ),
    _fault(
        id="M10",
        title="table and lengths are indexed by token instead of request",
        reference="vllm-project/vllm#51065, #51848",
        op="mla_decode",
        trigger="several query tokens a request, several requests",
        outputs=("o", "lse"),
        make=lambda: AttentionPatch(decode=_one_table_row_a_token),
    ),
    _fault(
        id="M11",
        title="NaN in the second row of two queries",
        reference="FlashMLA-ETAP#2",
        op="mla_decode",
        trigger="s_q = 2, more than 64 keys",
        outputs=("o", "lse"),
        make=lambda: AttentionPatch(returned=_second_row),
    ),
)
