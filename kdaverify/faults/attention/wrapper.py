"""Faults of wrappers, schedules and launches, and of schedules of sparse kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.attention.kernel import EVERY, AttentionPatch, KernelRequest, patched
from kdaverify.faults.attention.splits import SPLIT
from kdaverify.faults.fault import Fault
from oracles.attention.pipeline import (
    AttentionPipeline,
    PackedRows,
    Partial,
    Running,
    at_once,
    split,
)

ROWS: Final = 4
"""Query tokens that an emulated grid has room for, instead of 65535."""
RARE: Final = 5e-2
"""Of calls, instead of one in a thousand."""
Call = Callable[..., Any]


def _offsets_of_the_first_call() -> AttentionPatch:
    """A captured call keeps the offsets of its first run for every later one of its shape."""
    captured = dict[tuple[int, ...], tuple[Tensor, Tensor]]()

    def attention(right: Call, given: dict[str, Any]) -> Any:
        q, k = given["cu_seqlens_q"], given["cu_seqlens_k"]
        if q is None or k is None:
            return right(**given)
        shape = (*given["q"].shape, *given["k"].shape, len(q))
        q, k = captured.setdefault(shape, (q.clone(), k.clone()))
        return right(**{**given, "cu_seqlens_q": q, "cu_seqlens_k": k})

    return AttentionPatch(attention=attention)


def _work_of_the_first_call() -> AttentionPatch:
    """A schedule keeps the blocks of 64 keys of the first call of its batch size."""
    kept = dict[int, Tensor]()

    def decode(right: Call, given: dict[str, Any]) -> Any:
        lengths = given["cache_seqlens"]
        blocks = kept.setdefault(len(lengths), (lengths.clamp(min=1) + 63) // 64)
        return right(**{**given, "cache_seqlens": torch.minimum(lengths, blocks * 64)})

    return AttentionPatch(decode=decode)


def _longest_for_all(right: Call, given: dict[str, Any]) -> Any:
    """Every request is taken to be as long as the longest; what lies there is attended."""
    lengths, table = given["cache_seqlens"], given["block_table"]
    inside = table.clamp(0, len(given["cache"]) - 1)
    longest = lengths.max().expand_as(lengths) if len(lengths) else lengths
    return right(**{**given, "cache_seqlens": longest, "block_table": inside})


def _new_tokens_only(request: KernelRequest) -> KernelRequest:
    if request.s_k <= request.s_q or not request.causal:
        return request
    newest = slice(request.s_k - request.s_q, None)
    return replace(request, k=request.k[:, newest], v=request.v[:, newest])


def _store_skipped(request: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Empty requests are skipped, and what was in their rows stays."""
    if request.s_k:
        return o, lse
    return torch.full_like(o, 0.25), torch.ones_like(lse)


def _columns_swapped(_: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """Groups of 8 columns of every 16 swapped: every norm is right."""
    if o.shape[-1] % 16:
        return o, lse
    return o.unflatten(-1, (-1, 2, 8)).flip(-2).flatten(-3), lse


def _tail_of_the_width(request: KernelRequest) -> KernelRequest:
    """The last d_k % 16 columns of q are dropped."""
    over = request.q.shape[-1] % 16
    if not over:
        return request
    q = request.q.clone()
    q[..., -over:] = 0
    return replace(request, q=q)


def _grid_too_small(right: Call, given: dict[str, Any]) -> Any:
    """Query tokens past the limit are not written."""
    o, lse = right(**given)
    flat = o.flatten(0, 1).clone()
    flat[ROWS:] = 0
    return flat.view(o.shape), lse


def _partials_of_the_last_call() -> AttentionPatch:
    """The combine now and then reads a partial before it is written."""
    rng, last = torch.Generator().manual_seed(1), list[Partial]()

    def combine(run: AttentionPipeline, parts: list[Partial]) -> Partial:
        read = parts
        stale = last[0] if last and last[0].o.shape == parts[0].o.shape else None
        if stale is not None and float(torch.rand((), generator=rng)) < RARE:
            read = [stale, *parts[1:]]
        last[:] = [parts[0]]
        return at_once(run, read)

    return patched(design=SPLIT, combine=combine)


def _statistics_of_the_last_request() -> AttentionPatch:
    """The first part of a request starts from the maximum and row sum of the one before."""
    kept = list[Running]()
    index = [0]

    def request(r: KernelRequest) -> KernelRequest:
        index[0] = r.index
        return r

    def carried(run: AttentionPipeline, rows: PackedRows, span: tuple[int, int]) -> Partial:
        fresh, end = rows.state(), list[Running]()

        def finish(inner: AttentionPipeline, state: Running) -> Partial:
            end[:] = [state]
            if index[0] and kept and kept[0].l.shape == fresh.l.shape:
                l = state.l + kept[0].l  # noqa: E741 # the literature's letter
                state = replace(state, l=l)
            return run.stages.finish(inner, state)

        inner = replace(run, stages=replace(run.stages, finish=finish))
        found = split(inner, rows, span)
        kept[:] = end
        return found

    return patched(split=carried, request=request)


def _stride_of_another_rank(right: Call, given: dict[str, Any]) -> Any:
    """Row b of the table is read at b times the row's width less one."""
    table = given["block_table"]
    B, width = table.shape
    if B == 1 or width == 1:
        return right(**given)
    at = torch.arange(B)[:, None] * (width - 1) + torch.arange(width)
    read = table.flatten()[at].clamp(0, len(given["cache"]) - 1)
    return right(**{**given, "block_table": read})


_fault = partial(Fault, dtypes=EVERY, stage="gather", operator="mla_decode", outputs=("o", "lse"))
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="attention-W1", kind="E", title="a captured call keeps its sequence boundaries",
           reference="sgl-project/sglang#37975", operator="attention",
           trigger="two packs of one shape with other lengths",
           patch=lambda _: _offsets_of_the_first_call()),
    _fault(id="attention-W2", kind="E", title="a schedule is used again with longer lengths",
           reference="deepseek-ai/FlashMLA, sgl-project/sglang#6998",
           trigger="two calls of one batch size, the second with longer lengths",
           patch=lambda _: _work_of_the_first_call()),
    _fault(id="attention-W3", kind="B", title="the padded length is used for the actual one",
           reference="Dao-AILab/flash-attention#1455", trigger="requests of different lengths",
           patch=lambda _: AttentionPatch(decode=_longest_for_all)),
    _fault(id="attention-W4", kind="B", title="the cached prefix is dropped",
           reference="sgl-project/sglang#22020", operator="attention", trigger="causal, s_q < s_k",
           patch=lambda _: AttentionPatch(request=_new_tokens_only)),
    _fault(id="attention-W5", stage="partial", kind="B", title="empty requests are not stored",
           reference="deepseek-ai/FlashMLA@ebf3064", operator="attention",
           trigger="a request without keys",
           patch=lambda _: AttentionPatch(returned=_store_skipped)),
    _fault(id="attention-W6", stage="partial", kind="B",
           title="o is stored by the layout of another architecture",
           reference="Dao-AILab/flash-attention#2553", operator="attention",
           trigger="d_v a multiple of 16", outputs=("o",),
           patch=lambda _: AttentionPatch(returned=_columns_swapped)),
    _fault(id="attention-W7", stage="scores", kind="F", title="the last columns of q are dropped",
           reference="flashinfer-ai/flashinfer#4299", operator="attention",
           trigger="d_k no multiple of 16",
           patch=lambda _: AttentionPatch(request=_tail_of_the_width)),
    _fault(id="attention-W8", stage="partial", kind="F",
           title="rows past the limit of a grid are not written (emulated: 4 instead of 65535)",
           reference="deepseek-ai/FlashMLA@71c7379, @9241ae3", trigger="more than 4 query tokens",
           outputs=("o",), patch=lambda _: AttentionPatch(decode=_grid_too_small)),
    _fault(id="attention-W9", stage="combine", kind="D",
           title="partials are read before they are written (emulated: one call in twenty)",
           reference="deepseek-ai/FlashMLA@01a2772", trigger="repeats, more than one split",
           patch=lambda _: _partials_of_the_last_call()),
    _fault(id="attention-K1", kind="A", title="a request starts from the row sum of the one before",
           reference="sgl-project/sglang#16678", trigger="several requests", stage="partial",
           patch=lambda _: _statistics_of_the_last_request()),
    _fault(id="attention-K7", kind="B", title="the table is read with the stride of another rank",
           reference="vllm-project/vllm#57388", trigger="several requests, several pages each",
           patch=lambda _: AttentionPatch(decode=_stride_of_another_rank)),
)  # fmt: skip
