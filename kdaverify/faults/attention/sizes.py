"""Faults that begin at a size that models have and small problems do not: a second tile of rows,
heads, requests or columns, a list or a cache that is longer than a buffer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from kdaverify.faults.attention.kernel import (
    EVERY,
    AttentionPatch,
    KernelRequest,
    Outputs,
    Paged,
    bottom_right,
    gathered,
    patched,
)
from kdaverify.faults.attention.list_kernel import ListPatch, Named, QueryList, as_given
from kdaverify.faults.fault import Fault
from oracles.attention.pipeline import AttentionPipeline, Running
from oracles.attention.pipeline import accumulate as right_accumulate

KEYS, LONG, ROWS, HEADS, REQUESTS, COLUMNS, PAGES, ENTRIES, MERGED, DRAFTS, SPLIT = (
    1024, 4096, 128, 32, 32, 128, 64, 1024, 1024, 8, 512,
)  # fmt: skip
"""Where the faults begin. Block sizes and limits of buffers that kernels have: FlashAttention's
tiles are of 64 or 128 rows, Triton's decode takes up to 32 heads a tile, FlashMLA's lists have up
to 2,048 entries."""
Call = Callable[..., Any]


def _first_again(x: Tensor, dim: int, most: int) -> Tensor:
    """Entries of a dimension from `most` on hold those that are `most` earlier."""
    return x.index_select(dim, torch.arange(x.shape[dim]) % most)


def _latest_keys(most: int, request: KernelRequest) -> KernelRequest:
    """A request without its oldest keys."""
    kept = slice(max(0, request.s_k - most), None)
    return replace(request, k=request.k[:, kept], v=request.v[:, kept])


def _rows_again(_: KernelRequest, o: Tensor, lse: Tensor) -> Outputs:
    return _first_again(o, 1, ROWS), _first_again(lse, 1, ROWS)


def _heads_again(_: KernelRequest, o: Tensor, lse: Tensor) -> Outputs:
    return _first_again(o, 0, HEADS), _first_again(lse, 0, HEADS)


def _columns_again(_: KernelRequest, o: Tensor, lse: Tensor) -> Outputs:
    return _first_again(o, 2, COLUMNS), lse


def _without_a_key(request: KernelRequest) -> KernelRequest:
    """Requests from the second tile of them on lose their oldest key."""
    late = request.index >= REQUESTS and request.s_k > 1
    return _latest_keys(request.s_k - 1, request) if late else request


def _table_wrapped(paged: Paged, request: int) -> Tensor:
    return gathered(replace(paged, table=_first_again(paged.table, 1, PAGES)), request)


def _list_cut(one: QueryList) -> Named:
    at, seen = as_given(one)
    return at, seen & (torch.arange(len(seen)) < ENTRIES)


def _rows_of_a(right: Call, given: dict[str, Any]) -> Outputs:
    """The merge of rows past its grid is left out: the first state is returned."""
    o, lse = right(**given)
    rows = torch.arange(len(o)) >= MERGED
    kept = torch.where(rows[:, None, None], given["o_a"], o)
    return kept, torch.where(rows, given["lse_a"], lse)


def _borders_of_drafts(request: KernelRequest) -> Tensor:
    """Borders are in as many registers: queries after those take the last one."""
    return bottom_right(request)[torch.arange(request.s_q).clamp(max=DRAFTS - 1)]


def _rows_at_a_pitch(right: Call, given: dict[str, Any]) -> Outputs:
    """Rows of split keys lie at the pitch of the longest queries, and are returned from there."""
    o, lse = right(**given)
    ends, keys = given["cu_seqlens_q"], given["cu_seqlens_k"]
    if ends is None or int((ends if keys is None else keys).diff().max()) < SPLIT:
        return o, lse
    lengths, T = ends.diff(), len(o)
    pitch = max(1, int(lengths.max()))
    request, row = torch.arange(T) // pitch, torch.arange(T) % pitch
    there = (request < len(lengths)) & (row < lengths[request.clamp(max=len(lengths) - 1)])
    source = torch.where(there, ends[request.clamp(max=len(lengths) - 1)] + row, T).long()
    o, lse = functional.pad(o, (0, 0, 0, 0, 0, 1)), functional.pad(lse, (0, 1), value=-torch.inf)
    return o[source], lse[:, source]


SPILL: Final = 8192
"""Keys after which an accumulator leaves the registers."""


def _spilt_accumulator() -> AttentionPatch:
    """The accumulator is written to memory and read again as bf16."""
    read = [0]

    def accumulate(
        run: AttentionPipeline, state: Running, S: Tensor, v: Tensor, visible: Tensor
    ) -> Running:
        read[0] = read[0] if bool(state.l.any()) else 0
        if read[0] and read[0] % SPILL == 0:
            state = replace(state, acc=state.acc.bfloat16().to(state.acc.dtype))
        read[0] += S.shape[-1]
        return right_accumulate(run, state, S, v, visible)

    return patched(accumulate=accumulate)


def _unpaired_parts(request: KernelRequest) -> KernelRequest:
    """A merge by pairs from the last part on drops the first of an odd number, at every level."""
    parts = max(1, -(-request.s_k // LONG))
    paired = 2 ** (parts.bit_length() - 1)
    return _latest_keys(request.s_k - (parts - paired) * LONG, request)


THREADS: Final = 128
VECTOR: Final = 8
"""Columns of a thread: 16 bytes of bf16."""


def _weights_of_a_block(right: Call, given: dict[str, Any]) -> Outputs:
    """Heads that end in a later block of threads than they begin in have the weights there of the
    head that the block begins behind.
    """
    o, lse = right(**given)
    T, H, d_v = o.shape
    if d_v % VECTOR or not o.numel():
        return o, lse
    threads = d_v // VECTOR
    first = torch.arange(T * H * threads)
    head, start = first // threads, first // THREADS * THREADS
    wrong = (start + threads - 1) // threads
    fits = (head * threads < start) & (wrong < T * H)
    source = torch.where(fits, wrong, head).repeat_interleave(VECTOR).view(T, H, d_v)
    shares = [torch.exp(given[f"lse_{part}"] - lse).nan_to_num().mT.flatten() for part in "ab"]
    summed = sum(
        share[source] * given[f"o_{part}"].float() for share, part in zip(shares, "ab", strict=True)
    )
    split = fits.repeat_interleave(VECTOR).view(T, H, d_v)
    return torch.where(split, torch.as_tensor(summed).to(o.dtype), o), lse


_fault = partial(
    Fault, kind="B", dtypes=EVERY, outputs=("o", "lse"), reference="class: sizes that models have"
)
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="SIZE-keys", title=f"keys older than the latest {KEYS} are not read",
           trigger=f"more than {KEYS} keys", stage="gather", operator="attention",
           patch=lambda _: AttentionPatch(request=partial(_latest_keys, KEYS))),
    _fault(id="SIZE-rows", title=f"rows of queries from {ROWS} on repeat the first ones",
           trigger=f"more than {ROWS} queries a request", stage="gather", operator="attention",
           patch=lambda _: AttentionPatch(returned=_rows_again)),
    _fault(id="SIZE-heads", title=f"heads from {HEADS} on repeat the first ones",
           trigger=f"more than {HEADS} heads", stage="gather", operator="attention",
           patch=lambda _: AttentionPatch(returned=_heads_again)),
    _fault(id="SIZE-columns", title=f"columns of o from {COLUMNS} on repeat the first ones",
           trigger=f"d_v > {COLUMNS}", stage="partial", operator="attention", outputs=("o",),
           patch=lambda _: AttentionPatch(returned=_columns_again)),
    _fault(id="SIZE-requests", title=f"requests from number {REQUESTS} on lose their oldest key",
           trigger=f"more than {REQUESTS} requests", stage="gather", operator="attention",
           patch=lambda _: AttentionPatch(request=_without_a_key)),
    _fault(id="SIZE-decode-requests",
           title=f"requests from number {REQUESTS} on lose their oldest token",
           trigger=f"more than {REQUESTS} requests", stage="gather", operator="mla_decode",
           patch=lambda _: AttentionPatch(request=_without_a_key)),
    _fault(id="SIZE-pages",
           title=f"entries of the table from {PAGES} on are read as the first ones",
           trigger=f"more than {PAGES} pages", stage="gather", operator="mla_decode",
           patch=lambda _: AttentionPatch(gather=_table_wrapped)),
    _fault(id="SIZE-tokens", title=f"tokens older than the latest {LONG} are not read",
           trigger=f"more than {LONG} tokens", stage="gather", operator="mla_decode",
           patch=lambda _: AttentionPatch(request=partial(_latest_keys, LONG))),
    _fault(id="SIZE-entries", title=f"entries of a list from {ENTRIES} on are not read",
           trigger=f"more than {ENTRIES} entries", stage="gather", operator="sparse_attention",
           patch=lambda _: ListPatch(named=_list_cut)),
    _fault(id="SIZE-merge", title=f"rows from {MERGED} on are those of the first state",
           trigger=f"more than {MERGED} rows", stage="combine", operator="merge_state",
           patch=lambda _: AttentionPatch(merge=_rows_of_a)),
    _fault(id="SIZE-drafts",
           title=f"queries after the first {DRAFTS} have the border of the last of them",
           trigger=f"causal, more than {DRAFTS} queries a request", stage="scores",
           operator="mla_decode", patch=lambda _: AttentionPatch(visible=_borders_of_drafts)),
    _fault(id="SIZE-blocks", reference="local-inference-lab/vllm#468",
           title=f"a head that begins in one block of {THREADS} threads has the weights of another"
                 " head in the next", trigger=f"d_v / {VECTOR} that does not divide {THREADS}",
           stage="combine", operator="merge_state", outputs=("o",),
           patch=lambda _: AttentionPatch(merge=_weights_of_a_block)),
    _fault(id="SIZE-packs", title="rows of a pack lie at the pitch of its longest queries",
           trigger=f"{SPLIT} keys and more in a pack whose queries differ in number",
           stage="combine", operator="attention",
           patch=lambda _: AttentionPatch(attention=_rows_at_a_pitch)),
    _fault(id="SIZE-spill", title=f"the accumulator is stored in bf16 after every {SPILL:,} keys",
           kind="C", dtypes=("fp32",), trigger=f"more than {SPILL:,} keys", stage="partial",
           operator="attention", outputs=("o",), patch=lambda _: _spilt_accumulator()),
    _fault(id="SIZE-parts", title=f"a merge by pairs drops an odd first part of {LONG:,} tokens",
           trigger=f"three parts of {LONG:,} tokens", stage="combine", operator="mla_decode",
           patch=lambda _: AttentionPatch(request=_unpaired_parts)),
)  # fmt: skip
