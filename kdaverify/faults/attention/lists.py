"""Faults of lists of cache slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.attention.kernel import EVERY, PLAIN, KernelRequest, patched
from kdaverify.faults.attention.list_kernel import (
    Keys,
    ListPatch,
    Named,
    QueryList,
    added,
    as_given,
    summed,
)
from kdaverify.faults.attention.scores import unguarded_from_negative_infinity
from kdaverify.faults.attention.sinks import STARTED, in_every_split, without_dsink
from kdaverify.faults.fault import Fault, Make
from oracles.attention.pipeline import AttentionPipeline

TILE: Final = 64
RUN: Final = 32
HEADS: Final = 16
PART: Final = 2048
Call = Callable[..., Any]


def _last_slot(one: QueryList) -> Named:
    counted = torch.arange(len(one.entries)) < one.length
    inside = torch.where(one.seen, one.entries, one.slots - 1)
    return inside, counted


def _wrapped_round(one: QueryList) -> Named:
    """Only -1 names nothing; every other number is taken modulo the slots."""
    seen = (one.entries != -1) & (torch.arange(len(one.entries)) < one.length)
    return one.entries % one.slots, seen


def _duplicates_merged(one: QueryList) -> Named:
    at, seen = as_given(one)
    earlier = (at[:, None] == at) & seen
    return at, seen & ~earlier.tril(-1).any(-1)


def _counted_in_a_byte(one: QueryList) -> Named:
    """Distinct slots are read, with how often each occurs in eight bits."""
    at, seen = as_given(one)
    equal = (at[:, None] == at) & seen
    return at, seen & (equal.tril(-1).sum(-1) < equal.sum(-1) % 256)


def _offset_in_int32() -> ListPatch:
    """An index is a slot where its offset is one in the cache."""
    width = [1]

    def call(right: Call, given: dict[str, Any]) -> Any:
        width[0] = given["cache"].shape[2:].numel()
        return right(**given)

    def named(one: QueryList) -> Named:
        offset = (one.entries * width[0]).int().long()
        inside = (offset >= 0) & (offset < one.slots * width[0])
        inside &= torch.arange(len(one.entries)) < one.length
        return (offset // width[0]).masked_fill(~inside, 0), inside

    return ListPatch(named=named, call=call)


def _of_sixteen_bits(one: QueryList) -> Named:
    at, seen = as_given(one)
    return at % 2**16, seen


def _runs_by_three(one: QueryList) -> Named:
    """Runs are loaded as whole rows of the cache: those of 32 entries, by three of these."""
    at, seen = as_given(one)
    for first in range(0, len(at) - RUN + 1, RUN):
        row = torch.arange(RUN) + at[first]
        checked = torch.tensor([0, RUN // 2, RUN - 1])
        if seen[first : first + RUN].all() and bool((at[first + checked] == row[checked]).all()):
            at[first : first + RUN] = row
    return at, seen


def _offset_dropped(one: QueryList) -> Named:
    at, seen = as_given(one)
    return at // one.page * one.page, seen


def _tail_dropped(one: QueryList) -> Named:
    """What is behind the last full tile of a list of several."""
    at, seen = as_given(one)
    whole = len(at) // TILE * TILE or len(at)
    return at, seen & (torch.arange(len(at)) < whole)


def _length_ignored(one: QueryList) -> Named:
    seen = (one.entries >= 0) & (one.entries < one.slots)
    return one.entries.masked_fill(~seen, 0), seen


def _stops_at_nothing(one: QueryList) -> Named:
    at, seen = as_given(one)
    return at, seen.cumprod(0).bool()


def _counted_in_the_sum(rows: Keys, named: Named) -> tuple[Keys, Tensor]:
    """Scores of rows of zeros are 0, not -inf: they join the sum of exponentials."""
    at, seen = named
    k, v = (x[at].masked_fill(~seen[:, None, None], 0.0) for x in rows)
    return (k, v), torch.ones_like(seen)


def _unmasked(rows: Keys, named: Named) -> tuple[Keys, Tensor]:
    """Rows of entries that name nothing are those of slot 0."""
    at, seen = named
    return (rows[0][at], rows[1][at]), seen


def _plain_product(run: AttentionPipeline, P: Tensor, v: Tensor, _: Tensor) -> Tensor:
    return run.arithmetic.dot(P, v)


def _stored_not_added(slots: Tensor, named: Named, found: Keys) -> None:
    at, seen = named
    slots[at[seen]] = summed(found)[seen]


def _summed_in_bf16(slots: Tensor, named: Named, found: Keys) -> None:
    added(slots, named, found)
    slots.copy_(slots.bfloat16())


def _last_part_alone() -> ListPatch:
    """Parts of 2,048 queries store their sums of dcache, and do not add them."""
    count = [0]

    def call(right: Call, given: dict[str, Any]) -> Any:
        count[0] = 0
        return right(**given)

    def add(slots: Tensor, named: Named, found: Keys) -> None:
        if count[0] and count[0] % PART == 0:
            slots.zero_()
        added(slots, named, found)
        count[0] += 1

    return ListPatch(call=call, add=add)


def _bounded_by_slots(slots: Tensor, named: Named, found: Keys) -> None:
    """The number of slots is taken for that of entries."""
    at, seen = named
    added(slots, (at, seen & (torch.arange(len(at)) < len(slots))), found)


def _without_values(slots: Tensor, named: Named, found: Keys) -> None:
    dk, dv = found
    added(slots, named, (dk, torch.zeros_like(dv)))


def _first_block_of_heads(
    _request: KernelRequest, _do: Tensor, found: Sequence[Tensor]
) -> Sequence[Tensor]:
    """Gradients of sinks past the last full block of heads are dropped."""
    dq, dk, dv, *of_sink = found
    for dsink in of_sink:
        dsink[max(len(dsink) // HEADS, 1) * HEADS :] = 0
    return dq, dk, dv, *of_sink


def _of_the_first_request(
    request: KernelRequest, do: Tensor, found: Sequence[Tensor]
) -> Sequence[Tensor]:
    """dsink of the others is stored beside, and never added."""
    return without_dsink(request, do, found) if request.index else found


def _length_of_the_first(right: Call, given: dict[str, Any]) -> Any:
    lengths = given["topk_length"]
    shared = None if lengths is None else lengths[:1].expand_as(lengths)
    return right(**{**given, "topk_length": shared})


def _list_of_the_first(right: Call, given: dict[str, Any]) -> Any:
    """The stride of queries is taken to be 0."""
    indices = given["indices"]
    return right(**{**given, "indices": indices[:, :1].expand_as(indices)})


def _names(named: Callable[[QueryList], Named]) -> Make:
    return lambda _: ListPatch(named=named)


_fault = partial(
    Fault,
    kind="B",
    dtypes=EVERY,
    stage="gather",
    operator="sparse_attention",
    outputs=("o", "lse"),
    reference="class: lists of slots",
)
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="lists-1", title="an entry that names nothing is read as the last slot",
           trigger="entries that name nothing", patch=_names(_last_slot)),
    _fault(id="lists-2", stage="scores", kind="A",
           title="entries that name nothing are counted in the sum",
           trigger="entries that name nothing",
           patch=lambda _: ListPatch(gather=_counted_in_the_sum)),
    _fault(id="lists-3", title="an index that occurs twice counts once", trigger="duplicates",
           patch=_names(_duplicates_merged)),
    _fault(id="lists-4", title="the offset inside the page is dropped",
           trigger="pages of more than one slot", patch=_names(_offset_dropped)),
    _fault(id="lists-5", title="entries behind the last full tile are dropped",
           trigger="more than 64 entries, no multiple of it", patch=_names(_tail_dropped)),
    _fault(id="lists-6", kind="A", title="the running maximum starts at -inf, without a guard",
           reference="vllm-project/vllm#48366", trigger="a first tile of entries that name nothing",
           stage="partial", patch=lambda _: ListPatch(unguarded_from_negative_infinity(PLAIN))),
    _fault(id="lists-7", title="topk_length is ignored", trigger="lengths below topk",
           patch=_names(_length_ignored)),
    _fault(id="lists-8", title="topk_length of the first request is every one's",
           trigger="requests of different lengths",
           patch=lambda _: ListPatch(call=_length_of_the_first)),
    _fault(id="lists-9", title="the list of the first query is that of all of a request",
           reference="vllm-project/vllm#57388", trigger="several queries a request",
           patch=lambda _: ListPatch(call=_list_of_the_first)),
    _fault(id="lists-10", title="a list ends at the first entry that names nothing",
           trigger="entries that name nothing before others", patch=_names(_stops_at_nothing)),
    _fault(id="lists-11", kind="A",
           title="rows of entries that name nothing are multiplied by 0, not left out",
           reference="NVIDIA/cudnn-frontend#676 (a)",
           trigger="entries that name nothing, NaN in slot 0", outputs=("o",), stage="partial",
           patch=lambda _: ListPatch(patched(product=_plain_product), gather=_unmasked)),
    _fault(id="lists-12", kind="F",
           title="only -1 names nothing, other numbers that are no slots wrap",
           trigger="entries past the last slot", patch=_names(_wrapped_round)),
    _fault(id="lists-13", kind="A", title="the sink counts once in every split of a list",
           reference="class: sinks in split kernels", trigger="a sink, more than one split",
           outputs=("o",), stage="combine",
           patch=lambda _: ListPatch(patched(design=STARTED, begin=in_every_split))),
    _fault(id="lists-14", title="the gradient of a slot is stored, not added",
           reference="NVIDIA/cudnn-frontend#385",
           trigger="slots that several queries name, gradients", outputs=("dcache",), stage="dkv",
           patch=lambda _: ListPatch(add=_stored_not_added)),
    _fault(id="lists-15", title="the backward takes entries that name nothing for the last slot",
           reference="NVIDIA/cudnn-frontend#676 (a)",
           trigger="entries that name nothing, gradients", outputs=("dq", "dcache"), stage="dkv",
           patch=lambda _: ListPatch(named_backward=_last_slot)),
    _fault(id="lists-16", title="topk_length is ignored in the backward",
           reference="NVIDIA/cudnn-frontend#676 (1)", trigger="lengths below topk, gradients",
           outputs=("dq", "dcache"), stage="dkv",
           patch=lambda _: ListPatch(named_backward=_length_ignored)),
    _fault(id="lists-17", kind="C", title="gradients of a slot are summed in bf16",
           reference="meta-pytorch/attention-gym#244",
           trigger="slots that several queries name, gradients", outputs=("dcache",), stage="dkv",
           patch=lambda _: ListPatch(add=_summed_in_bf16)),
    _fault(id="lists-18", kind="A",
           title="the gradient of values is left out of columns that keys share",
           reference="class: gradients of lists", trigger="gradients", outputs=("dcache",),
           stage="dkv", patch=lambda _: ListPatch(add=_without_values)),
    _fault(id="lists-19",
           title="gradients of sinks past the last full block of 16 heads are dropped",
           reference="PaddlePaddle/PaddleFleet#1054",
           trigger="a sink, more than 16 heads, no multiple of it, gradients", outputs=("dsink",),
           stage="sink", patch=lambda _: ListPatch(patched(gradients=_first_block_of_heads))),
    _fault(id="lists-20", title="the gradient of the sink is that of the first request",
           reference="class: gradients of lists", trigger="a sink, several requests, gradients",
           outputs=("dsink",), stage="sink",
           patch=lambda _: ListPatch(patched(gradients=_of_the_first_request))),
    _fault(id="lists-21", kind="F", title="how often a slot occurs is counted in a byte",
           trigger="a slot that occurs 256 times in a list", patch=_names(_counted_in_a_byte)),
    _fault(id="lists-22", kind="F", title="the offset of an index is compared in int32",
           trigger="entries whose product with the width of a row wraps into a slot",
           patch=lambda _: _offset_in_int32()),
    _fault(id="lists-23",
           title="gradients of entries behind as many as there are slots are dropped",
           reference="NVIDIA/cudnn-frontend#298",
           trigger="more entries than slots, the last ones repeated, gradients",
           outputs=("dcache",), stage="dkv", patch=lambda _: ListPatch(add=_bounded_by_slots)),
    _fault(id="lists-24", kind="F", title="slots are numbered in 16 bits",
           reference="class: caches past 65,536 slots", trigger="a cache of more than 65,536 slots",
           patch=_names(_of_sixteen_bits)),
    _fault(id="lists-25",
           title="a tile is taken for a run of slots by its first, middle and last entry",
           trigger="slots in a row, but for one that stands twice", patch=_names(_runs_by_three)),
    _fault(id="lists-26", title="dcache of 2,048 queries replaces that of those before",
           reference="class: gradients of lists", trigger="more than 2,048 queries, gradients",
           outputs=("dcache",), stage="dkv", patch=lambda _: _last_part_alone()),
)  # fmt: skip
