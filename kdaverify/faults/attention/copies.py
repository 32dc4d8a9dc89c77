"""Faults that begin at a product of sizes: work spaces, blocks and indices of one call with very
many entries, heads, requests or rows. Blind ports were accepted with such limits: problems were
large in one size at a time.
"""

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
    Outputs,
    Paged,
    gathered,
)
from kdaverify.faults.fault import Fault

PROGRAMS: Final = 1024
RESIDENT: Final = 132
"""Programs of a launch that stays, one for each multiprocessor."""
BLOCK: Final = 8192
AXIS: Final = 65535
"""Programs along the second or third axis of a grid."""
PLANNED: Final = 4096
"""Requests whose work a planner holds in shared memory."""
Call = Callable[..., Any]


def _lse_of_the_first() -> AttentionPatch:
    def attention(right: Call, given: dict[str, Any]) -> Outputs:
        o, lse = right(**given)
        if given["cu_seqlens_q"] is not None:
            return o, lse
        rows = torch.arange(lse.shape[0] * lse.shape[1]).view(lse.shape[:2])
        return o, torch.where(rows[..., None] < PROGRAMS, lse, 0.0)

    return AttentionPatch(attention=attention)


def _one_axis(request: KernelRequest, o: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """o [H, s_q, d_v] of an entry: programs past an axis of the grid are not launched."""
    if request.packed:
        return o, lse
    number = request.index * len(o) + torch.arange(len(o))
    return o.masked_fill((number >= AXIS)[:, None, None], 0.0), lse


def _unsummed(request: KernelRequest) -> KernelRequest:
    """Offsets are summed over one block of threads: keys of later sequences begin one too early."""
    if not request.packed or request.index < PROGRAMS:
        return request
    k, v = (torch.cat((x[:, :1], x[:, :-1]), 1) for x in (request.k, request.v))
    return replace(request, k=k, v=v)


def _unplanned(paged: Paged, request: int) -> Tensor:
    """Requests that a planner has no room for read their pages as zeros."""
    found = gathered(paged, request)
    return torch.zeros_like(found) if request >= PLANNED else found


def _sums_left_over() -> AttentionPatch:
    """Programs have several entries each, and those without add what they had in another call."""
    kept: dict[tuple[int, ...], Tensor] = {}

    def attention(right: Call, given: dict[str, Any]) -> Outputs:
        o, lse = right(**given)
        entries = lse.flatten(0, 1) if given["cu_seqlens_q"] is None else lse
        each = -(-len(entries) // RESIDENT)
        busy = -(-len(entries) // each)
        sums = kept.setdefault(tuple(o.shape[1:]), lse.new_zeros(RESIDENT))
        sums[:busy] = torch.stack([x.detach().exp().sum() for x in entries.split(each)])
        return o, lse + sums[busy : len(entries)].sum()

    return AttentionPatch(attention=attention)


def _first_block_merged(right: Call, given: dict[str, Any]) -> Outputs:
    o, lse = right(**given)
    columns = torch.arange(o[0].numel()).view(o.shape[1:])
    return torch.where(columns < BLOCK, o, given["o_a"]), lse


def _short_ids(paged: Paged, request: int) -> Tensor:
    """Ids are staged in 16 bits."""
    table = paged.table.to(torch.int16).int() % len(paged.cache)
    return gathered(replace(paged, table=table), request)


def _short_numbers() -> AttentionPatch:
    """In the backward of a pack keys are those of the sequence of a number of 8 bits."""
    kept = dict[int, tuple[Tensor, Tensor]]()

    def backward_request(r: KernelRequest) -> KernelRequest:
        if not r.packed:
            return r
        if r.index < PROGRAMS // 4:
            kept[r.index] = (r.k, r.v)
            return r
        k, v = kept[r.index % 256]
        return replace(r, k=k, v=v) if k.shape == r.k.shape else replace(r, k=0 * r.k)

    return AttentionPatch(backward_request=backward_request)


def _equal_ends() -> AttentionPatch:
    """Lengths are all the first one where that is the greatest, and the last one."""

    def decode(right: Call, given: dict[str, Any]) -> Any:
        lengths, pages = given["cache_seqlens"], given["cache"]
        if len(lengths) < 3 or not lengths[0] == lengths[-1] == lengths.max():
            return right(**given)
        table = given["block_table"]
        table = torch.where(table < len(pages), table, 0)
        equal = torch.full_like(lengths, int(lengths[0]))
        return right(**{**given, "cache_seqlens": equal, "block_table": table})

    return AttentionPatch(decode=decode)


_fault = partial(
    Fault, kind="F", dtypes=EVERY, outputs=("o", "lse"), operator="attention", stage="gather",
    reference="class: products of sizes",
)  # fmt: skip
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="COPY-lse", title=f"there is room for LSE of {PROGRAMS} heads of entries", kind="B",
           trigger=f"a batch with B H > {PROGRAMS}", stage="partial", outputs=("lse",),
           patch=lambda _: _lse_of_the_first()),
    _fault(id="COPY-fewer", title="programs without entries add what they had in a larger call",
           trigger=f"{RESIDENT + 1} to {2 * RESIDENT - 1} heads of entries after more of them",
           kind="B", stage="partial", outputs=("lse",), patch=lambda _: _sums_left_over()),
    _fault(id="COPY-merge", title=f"a block merges {BLOCK} elements of a row, the others are o_a",
           trigger=f"H d_v > {BLOCK}", stage="combine", outputs=("o",), kind="B",
           operator="merge_state",
           patch=lambda _: AttentionPatch(merge=_first_block_merged)),
    _fault(id="COPY-pages", title="ids of pages are staged in 16 bits",
           trigger="a pool of more than 32,768 pages", operator="mla_decode",
           patch=lambda _: AttentionPatch(gather=_short_ids)),
    _fault(id="COPY-grid", title="a grid has one axis for entries and heads",
           trigger=f"a batch with B H > {AXIS:,}", stage="partial", outputs=("o",),
           reference="pytorch/pytorch#180445", patch=lambda _: AttentionPatch(returned=_one_axis)),
    _fault(id="COPY-scan", title="offsets of keys are summed over one block of threads",
           trigger=f"a pack of more than {PROGRAMS:,} sequences",
           patch=lambda _: AttentionPatch(request=_unsummed)),
    _fault(id="COPY-plan", title="work of requests is planned in shared memory",
           trigger=f"more than {PLANNED:,} requests", operator="mla_decode",
           reference="ROCm/aiter#1352", patch=lambda _: AttentionPatch(gather=_unplanned)),
    _fault(id="COPY-sequences", title="the backward reads keys by a number of 8 bits",
           trigger="a pack of more than 256 sequences, gradients", stage="dq", outputs=("dq",),
           patch=lambda _: _short_numbers()),
    _fault(id="COPY-ends", title="all lengths are equal where the first and the last are greatest",
           trigger="three requests, the first and the last of one length, a shorter one between",
           kind="B", operator="mla_decode", patch=lambda _: _equal_ends()),
)  # fmt: skip
