"""Faults that show where sizes are equal, 1, or a tile apart, at the ends of caches and tables, and
in packs alone: code that recognises an axis by its size, or chooses a path by sizes.

Blind ports of attention were accepted with one of each kind: no problem had equal sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.attention.backward import staged
from kdaverify.faults.attention.kernel import (
    EVERY,
    AttentionPatch,
    KernelRequest,
    Outputs,
    Paged,
    bottom_right,
    gathered,
)
from kdaverify.faults.attention.list_kernel import ListPatch, Named, QueryList, as_given
from kdaverify.faults.attention.masks import top_left, unmasked
from kdaverify.faults.fault import Fault, with_gradient, with_gradients
from oracles.attention.backward import AttentionBackward, Given
from oracles.attention.backward import dsink as right_dsink

TILE: Final = 64
Call = Callable[..., Any]


def _merged_by_rows(right: Call, given: dict[str, Any]) -> Outputs:
    """LSE is [T, H] to the kernel wherever its first axis has T elements."""
    flipped = len(given["lse_a"]) == len(given["o_a"])
    if not flipped:
        return right(**given)
    turned = {name: given[name].mT.contiguous() for name in ("lse_a", "lse_b")}
    o, lse = right(**{**given, **turned})
    return o, lse.mT.contiguous()


def _sink_of_queries(request: KernelRequest, o: Tensor, lse: Tensor) -> Outputs:
    """The sinks are broadcast along the queries where there are as many as heads."""
    if request.sink is None or request.s_q != len(o):
        return o, lse
    wrong, right = (torch.sigmoid(lse - request.sink.view(shape)) for shape in ((1, -1), (-1, 1)))
    return o * (wrong / right).nan_to_num(0.0, 0.0)[..., None].to(o.dtype), lse


def _heads_first(right: Call, given: dict[str, Any]) -> Any:
    """k and v are [B, h_kv, s_k, d] to the kernel where the shape allows it."""
    k, v = given["k"], given["v"]
    if k.ndim == 4 and k.shape[1] == k.shape[2]:
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    return right(**{**given, "k": k, "v": v})


def _dk_turned(right: Call, given: dict[str, Any]) -> Any:
    """dk has keys and heads swapped where there are as many."""

    def turned(dk: Tensor) -> Tensor:
        return dk.transpose(-3, -2) if dk.shape[-3] == dk.shape[-2] else dk

    return right(**{**given, "k": with_gradient(turned, given["k"])})


def _lists_turned(right: Call, given: dict[str, Any]) -> Any:
    """Lists are [s_q, B, topk] to the kernel where the shape allows it."""
    indices = given["indices"]
    square = indices.shape[0] == indices.shape[1]
    return right(**{**given, "indices": indices.transpose(0, 1) if square else indices})


def _numbered_in_a_byte() -> AttentionPatch:
    """A sequence past the 256th ends where the one 256 before it does."""
    lengths = dict[int, int]()

    def visible(r: KernelRequest) -> Tensor:
        lengths[r.index] = r.s_k
        end = lengths[r.index % 256] if r.packed else r.s_k
        return bottom_right(r) & (torch.arange(r.k.shape[1]) < end)

    return AttentionPatch(visible=visible)


def _one_key_unmasked(request: KernelRequest) -> Tensor:
    return unmasked(request) if request.s_k == 1 else bottom_right(request)


def _one_sequence_as_batch(right: Call, given: dict[str, Any]) -> Any:
    """A pack of one sequence is a batch of one entry, its rows past the last offset included."""
    offsets = given["cu_seqlens_q"]
    if offsets is None or len(offsets) != 2:
        return right(**given)
    batch = {name: given[name][None] for name in ("q", "k", "v")}
    o, lse = right(**{**given, **batch, "cu_seqlens_q": None, "cu_seqlens_k": None})
    return o[0], lse[0]


def _one_head_without_sink(request: KernelRequest) -> KernelRequest:
    if request.sink is None or len(request.q) > 1:
        return request
    return replace(request, sink=torch.full_like(request.sink, -torch.inf))


def _square_where(agree: Callable[[Tensor, Tensor], bool]) -> AttentionPatch:
    """The border of squares in a whole pack, where its lengths of q and k agree in some way."""
    square = [False]

    def attention(right: Call, given: dict[str, Any]) -> Any:
        q, k = given["cu_seqlens_q"], given["cu_seqlens_k"]
        square[0] = q is not None and agree(q.diff(), k.diff())
        return right(**given)

    def visible(request: KernelRequest) -> Tensor:
        return top_left(request) if square[0] else bottom_right(request)

    return AttentionPatch(attention=attention, visible=visible)


def _first_queries_of_the_longest() -> AttentionPatch:
    """The backward begins each tile of keys at the query that sees its first key in a sequence of
    the longest lengths.
    """
    ahead = [0]

    def attention(right: Call, given: dict[str, Any]) -> Any:
        q, k = given["cu_seqlens_q"], given["cu_seqlens_k"]
        of_batch = given["k"].shape[1] - given["q"].shape[1]
        ahead[0] = of_batch if q is None else int(k.diff().max() - q.diff().max())
        return right(**given)

    def visible(request: KernelRequest) -> Tensor:
        seen = bottom_right(request)
        if not request.causal:
            return seen
        first = (torch.arange(seen.shape[1]) // TILE * TILE - ahead[0]).clamp(min=0) // TILE * TILE
        return seen & (torch.arange(request.s_q)[:, None] >= first)

    return AttentionPatch(attention=attention, visible_backward=visible)


def _read_dense(do: Tensor) -> Tensor:
    """An incoming gradient read from memory as if it were dense."""
    if do.is_contiguous():
        return do
    memory = do.new_empty(0).set_(do.untyped_storage())[do.storage_offset() :]
    return memory[torch.arange(do.numel()).clamp(max=len(memory) - 1)].view(do.shape)


def _dense_cotangents_of_packs(right: Call, given: dict[str, Any]) -> Any:
    o, lse = right(**given)
    return (o if given["cu_seqlens_q"] is None else with_gradient(_read_dense, o)), lse


def _sinks_of_padding(right: Call, given: dict[str, Any]) -> Any:
    """The gradient of the sink counts products of do and o in rows past the last offset."""
    o, lse = right(**given)
    if given["cu_seqlens_q"] is None or given["sink"] is None:
        return o, lse
    past, own = slice(int(given["cu_seqlens_q"][-1]), None), o

    def change(do: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        return do, -(own[past].float() * do[past].float()).sum((0, 2))

    o, _ = with_gradients(change, o, given["sink"])
    return o, lse


def _tiles_of_keys() -> AttentionPatch:
    """dsink has as many partial sums as tiles of keys; further query tiles' are not read."""
    last = list[KernelRequest]()

    def request(r: KernelRequest) -> KernelRequest:
        last[:] = [r]
        return r

    def dsink(run: AttentionBackward, a: Tensor, delta: Tensor, given: Given) -> Tensor:
        found = right_dsink(run, a, delta, given)
        query = torch.arange(found.shape[-1]) % max(last[0].s_q, 1)
        return found.masked_fill(query >= -(-last[0].s_k // TILE) * TILE, 0.0)

    return replace(staged(dsink=dsink), backward_request=request)


def _last_slot_is_none(one: QueryList) -> Named:
    at, seen = as_given(one)
    return at, seen & (one.entries != one.slots - 1)


def _first_slot_is_none(one: QueryList) -> Named:
    at, seen = as_given(one)
    return at, seen & (one.entries > 0)


def _last_page_clamped(paged: Paged, request: int) -> Tensor:
    last = len(paged.cache) - 1
    table = torch.where(paged.table == last, max(last - 1, 0), paged.table)
    return gathered(replace(paged, table=table), request)


def _last_column_clamped(paged: Paged, request: int) -> Tensor:
    width = paged.table.shape[1]
    columns = torch.arange(width).clamp(max=max(width - 2, 0))
    return gathered(replace(paged, table=paged.table[:, columns]), request)


_fault = partial(
    Fault, kind="B", dtypes=EVERY, outputs=("o", "lse"), operator="attention", stage="gather",
    reference="class: special sizes",
)  # fmt: skip
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="EQUAL-merge", title="LSE is transposed where its first axis is as long as that of o",
           trigger="T = H", operator="merge_state", stage="combine",
           patch=lambda _: AttentionPatch(merge=_merged_by_rows)),
    _fault(id="EQUAL-sink",
           title="sinks are broadcast along the queries where there are as many as heads",
           trigger="a sink, s_q = H", operator="mla_decode", stage="sink", outputs=("o",),
           patch=lambda _: AttentionPatch(returned=_sink_of_queries)),
    _fault(id="EQUAL-heads", title="keys and heads are swapped where there are as many",
           trigger="s_k = h_kv", patch=lambda _: AttentionPatch(attention=_heads_first)),
    _fault(id="EQUAL-dk", title="keys and heads of dk are swapped where there are as many",
           trigger="s_k = h_kv, gradients", stage="dkv", outputs=("dk",),
           patch=lambda _: AttentionPatch(attention=_dk_turned)),
    _fault(id="EQUAL-lists",
           title="lists of requests and queries are swapped where there are as many",
           trigger="B = s_q", operator="sparse_attention",
           patch=lambda _: ListPatch(call=_lists_turned)),
    _fault(id="ONE-key", title="a single key is read without its mask",
           trigger="causal, s_k = 1, s_q > 1", stage="scores",
           patch=lambda _: AttentionPatch(visible=_one_key_unmasked)),
    _fault(id="ONE-sequence", title="a pack of one sequence is read to the end of its tensors",
           trigger="a pack of one sequence, rows past the last offset",
           patch=lambda _: AttentionPatch(attention=_one_sequence_as_batch)),
    _fault(id="ONE-head", title="one head has no sink", trigger="a sink, H = 1", stage="sink",
           outputs=("o", "dsink"), patch=lambda _: AttentionPatch(request=_one_head_without_sink)),
    _fault(id="PACK-maxima",
           title="a pack has the border of squares where the longest lengths are equal",
           trigger="a causal pack, equal longest s_q and s_k, others that differ", stage="scores",
           patch=lambda _: _square_where(lambda q, k: bool(q.max() == k.max()))),
    _fault(id="PACK-sums",
           title="a pack has the border of squares where it has as many rows of q as of k",
           trigger="a causal pack, equal sums of s_q and s_k, requests that differ", stage="scores",
           patch=lambda _: _square_where(lambda q, k: bool(q.sum() == k.sum()))),
    _fault(id="PACK-byte", title="sequences of a pack are numbered in a byte", kind="F",
           trigger="a pack of more than 256 sequences, of other lengths than 256 before",
           stage="scores", patch=lambda _: _numbered_in_a_byte()),
    _fault(id="PACK-tiles",
           title="the backward begins a tile of keys at the first query by the longest lengths",
           trigger="a causal pack whose sequences differ in s_k - s_q, tiles of keys, gradients",
           stage="dkv", outputs=("dq", "dk", "dv"),
           patch=lambda _: _first_queries_of_the_longest()),
    _fault(id="PACK-cotangent", title="the incoming gradient of a pack is read as a dense tensor",
           trigger="a pack, a view as incoming gradient", stage="dkv", outputs=("dq", "dk", "dv"),
           patch=lambda _: AttentionPatch(attention=_dense_cotangents_of_packs)),
    _fault(id="PACK-sink",
           title="the gradient of the sink sums rows past the last offset, as 0 times do",
           trigger="a pack with a sink, NaN in do past the last offset", stage="sink",
           outputs=("dsink",), patch=lambda _: AttentionPatch(attention=_sinks_of_padding)),
    _fault(id="TILE-sink",
           title="the gradient of the sink sums as many tiles of queries as there are of keys",
           trigger="a sink, a tile more of queries than of keys, gradients", stage="sink",
           outputs=("dsink",), patch=lambda _: _tiles_of_keys()),
    _fault(id="END-slot", title="the last slot of the cache is taken for no slot",
           trigger="a list that names it", operator="sparse_attention",
           patch=lambda _: ListPatch(named=_last_slot_is_none)),
    _fault(id="END-first-slot", title="slot 0 of the cache is taken for no slot",
           trigger="a list that names it", operator="sparse_attention",
           patch=lambda _: ListPatch(named=_first_slot_is_none)),
    _fault(id="END-slot-backward",
           title="the backward takes the last slot of the cache for no slot",
           trigger="a list that names it, gradients", operator="sparse_attention", stage="dkv",
           outputs=("dq", "dcache"), patch=lambda _: ListPatch(named_backward=_last_slot_is_none)),
    _fault(id="END-page", title="the final page of the cache is read as the one before",
           trigger="a table that names it", operator="mla_decode",
           patch=lambda _: AttentionPatch(gather=_last_page_clamped)),
    _fault(id="END-column", title="the last column of the table is read as the one before",
           trigger="a request as long as its row of the table", operator="mla_decode",
           patch=lambda _: AttentionPatch(gather=_last_column_clamped)),
)  # fmt: skip
