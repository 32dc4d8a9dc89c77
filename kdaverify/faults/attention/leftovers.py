"""Faults that show in a call after another one of the same shape whose rows saw other keys: plans
kept by too little of what they depend on, and rows of a work space, or of memory that is allocated,
that nothing is written to.

Blind ports were accepted that kept a schedule by batch and total length, that returned the rows of
an earlier call where a sequence has no keys, and that initialised dk and dv in causal calls alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.attention.kernel import (
    EVERY,
    AttentionPatch,
    KernelRequest,
    Outputs,
    Paged,
    bottom_right,
    gathered,
)
from kdaverify.faults.attention.list_kernel import ListPatch
from kdaverify.faults.fault import Fault

TILE: Final = 64
SPLIT: Final = 256
PLANNED: Final = 1536
MASKS: Final = (("", "not causal", False), ("-causal", "causal", True))
Call = Callable[..., Any]


def _schedule_by_total() -> AttentionPatch:
    """The tiles of 64 keys of every request are those of an earlier call of as many keys."""
    kept = dict[tuple[int, int], Tensor]()

    def decode(right: Call, given: dict[str, Any]) -> Any:
        lengths = given["cache_seqlens"]
        tiles = kept.setdefault((len(lengths), int(lengths.sum())), -(-lengths // TILE))
        return right(**{**given, "cache_seqlens": torch.minimum(lengths, tiles * TILE)})

    return AttentionPatch(decode=decode)


def _schedule_by_tensor() -> AttentionPatch:
    """The tiles are kept for the memory that lengths lie in."""
    kept = dict[tuple[int, int], tuple[Tensor, Tensor]]()

    def decode(right: Call, given: dict[str, Any]) -> Any:
        lengths = given["cache_seqlens"]
        # with the tensor, so that its memory is not used again
        fresh = (-(-lengths // TILE), lengths)
        tiles, _ = kept.setdefault((lengths.data_ptr(), len(lengths)), fresh)
        return right(**{**given, "cache_seqlens": torch.minimum(lengths, tiles * TILE)})

    return AttentionPatch(decode=decode)


def _schedule_by_hash() -> AttentionPatch:
    """Where parts of requests end is kept by a polynomial hash of the lengths."""
    kept = dict[tuple[int, int], Tensor]()

    def decode(right: Call, given: dict[str, Any]) -> Any:
        lengths = given["cache_seqlens"]
        key = 0
        for length in lengths.tolist():
            key = (31 * key + length) % 2**32
        ends = kept.setdefault((len(lengths), key), lengths.clone())
        return right(**{**given, "cache_seqlens": torch.minimum(lengths, ends)})

    return AttentionPatch(decode=decode)


def _keys_by_queries() -> AttentionPatch:
    """Offsets of keys are those of the first call with such offsets of queries."""
    kept = dict[tuple[Any, ...], Tensor]()

    def attention(right: Call, given: dict[str, Any]) -> Any:
        q, k = given["cu_seqlens_q"], given["cu_seqlens_k"]
        if q is None or k is None:
            return right(**given)
        own = kept.setdefault((*q.tolist(), int(k[-1]), *given["k"].shape), k.clone())
        return right(**{**given, "cu_seqlens_k": own})

    return AttentionPatch(attention=attention)


def _rows_without_keys_kept() -> AttentionPatch:
    """o of a request without keys is what one of its number and queries left in a call before."""
    kept = dict[Any, Tensor]()

    def returned(request: KernelRequest, o: Tensor, lse: Tensor) -> Outputs:
        place = (request.index, request.count, o.shape, o.dtype)
        if request.s_k:
            kept[place] = o.detach().clone()
            return o, lse
        return kept.get(place, o), lse

    return AttentionPatch(returned=returned)


def _mask_by_shape() -> AttentionPatch:
    """A compiled kernel has the mask of its first call."""
    kept = dict[Any, bool]()

    def attention(right: Call, given: dict[str, Any]) -> Any:
        key = (given["q"].shape, given["k"].shape, given["v"].shape, given["q"].dtype)
        return right(**{**given, "causal": kept.setdefault(key, given["causal"])})

    return AttentionPatch(attention=attention)


def _dk_kept() -> AttentionPatch:
    """dk of a request without queries is that of its number in the backward before."""
    kept = dict[Any, Tensor]()

    def gradients(r: KernelRequest, _: Tensor, found: Sequence[Tensor]) -> Sequence[Tensor]:
        dq, dk, *others = found
        place = (r.index, r.count, dk.shape, dk.dtype)
        if r.s_q:
            kept[place] = dk.detach().clone()
        return dq, kept.get(place, dk), *others

    return AttentionPatch(gradients=gradients)


def _empty_rows_merged() -> AttentionPatch:
    """Rows that are empty in both states are not written."""
    kept = dict[Any, Tensor]()

    def merge(right: Call, given: dict[str, Any]) -> Outputs:
        o, lse = right(**given)
        last = kept.get(o.shape, torch.zeros_like(o))
        o = torch.where(torch.isneginf(lse).mT[..., None], last.to(o.dtype), o)
        kept[o.shape] = o.clone()
        return o, lse

    return AttentionPatch(merge=merge)


def _output_kept() -> AttentionPatch:
    """The last output is kept in fp32, and read wherever it comes back."""
    kept = dict[int, tuple[Tensor, Tensor]]()

    def merge(right: Call, given: dict[str, Any]) -> Outputs:
        returned, wide = kept.get(given["o_a"].data_ptr(), (None, given["o_a"]))
        same = returned is not None and returned.shape == wide.shape
        o, lse = right(**(given | {"o_a": wide.to(given["o_a"].dtype)} if same else given))
        kept.clear()
        kept[o.data_ptr()] = o, o.float().clone()
        return o, lse

    return AttentionPatch(merge=merge)


def _rows_that_go_on() -> AttentionPatch:
    """Gathered rows of a request are kept, and the last is added where it has one key more."""
    kept = dict[int, tuple[int, Tensor]]()

    def gather(paged: Paged, request: int) -> Tensor:
        found, memory = gathered(paged, request), paged.cache.data_ptr()
        before = kept.get(request)
        if before is not None and before[0] == memory and len(before[1]) + 1 == len(found):
            found = torch.cat((before[1], found[-1:]))
        kept[request] = memory, found.clone()
        return found

    return AttentionPatch(gather=gather)


def _splits_kept() -> AttentionPatch:
    """Partial states lie in a work space by shape and number of splits; all there are merged."""
    kept, most = dict[Any, list[Outputs]](), [0]

    def decode(right: Call, given: dict[str, Any]) -> Any:
        most[:] = [-(-int(given["cache_seqlens"].max()) // SPLIT)]
        return right(**given)

    def returned(r: KernelRequest, o: Tensor, lse: Tensor) -> Outputs:
        slots = kept.setdefault((*most, r.index, r.count, o.shape, o.dtype), [])
        own = [_partial(r, begin) for begin in range(0, r.s_k, SPLIT)]
        slots[: len(own)] = own
        return reduce(_merged, slots[len(own) :], (o, lse))

    return AttentionPatch(decode=decode, returned=returned)


def _plan_by_blocks() -> AttentionPatch:
    """Lengths are kept by numbers of blocks of 64, if the longest request has over 1,536 keys."""
    kept = dict[tuple[int, ...], Tensor]()

    def decode(right: Call, given: dict[str, Any]) -> Any:
        lengths = given["cache_seqlens"]
        if int(lengths.max()) > PLANNED:
            blocks = tuple((-(-lengths // TILE)).tolist())
            planned = kept.setdefault(blocks, lengths.clone())
            given = {**given, "cache_seqlens": torch.minimum(lengths, planned)}
        return right(**given)

    return AttentionPatch(decode=decode)


def _partial(r: KernelRequest, begin: int) -> Outputs:
    """o and LSE over one split of a request's keys."""
    group, own = len(r.q) // len(r.k), slice(begin, min(begin + SPLIT, r.s_k))
    k, v = (x[:, own].float().repeat_interleave(group, 0) for x in (r.k, r.v))
    hidden = ~bottom_right(r)[:, own]
    S = (r.scale * (r.q.float() @ k.mT)).masked_fill(hidden, -torch.inf)
    return S.softmax(-1).nan_to_num() @ v, S.logsumexp(-1)


def _merged(a: Outputs, b: Outputs) -> Outputs:
    lse = torch.logaddexp(a[1], b[1])
    parts = (w.sub(lse).exp().nan_to_num()[..., None] * o for o, w in (a, b))
    return sum(parts, torch.zeros_like(a[0])).to(a[0].dtype), lse


def _lists_by_length() -> ListPatch:
    """How many entries count is kept by their total."""
    kept = dict[Any, Tensor]()

    def call(right: Call, given: dict[str, Any]) -> Any:
        lengths = given["topk_length"]
        if lengths is None:
            return right(**given)
        first = kept.setdefault((given["indices"].shape, int(lengths.sum())), lengths.clone())
        return right(**{**given, "topk_length": first})

    return ListPatch(call=call)


def _unwritten_gradients(*, causal: bool) -> AttentionPatch:
    """dk and dv of a sequence without queries are what memory held."""

    def gradients(r: KernelRequest, _: Tensor, found: Sequence[Tensor]) -> Sequence[Tensor]:
        dq, dk, dv, *others = found
        if r.s_q or not r.packed or r.causal != causal:
            return found
        return dq, torch.empty_like(dk), torch.empty_like(dv), *others

    return AttentionPatch(gradients=gradients)


def _unwritten_rows(*, causal: bool) -> AttentionPatch:
    """o of a sequence without keys is what memory held."""

    def returned(r: KernelRequest, o: Tensor, lse: Tensor) -> Outputs:
        written = r.s_k or not r.packed or r.causal != causal
        return (o if written else torch.empty_like(o)), lse

    return AttentionPatch(returned=returned)


_fault = partial(
    Fault, kind="E", dtypes=EVERY, outputs=("o", "lse"), operator="attention", stage="gather",
    reference="class: calls of one shape",
)  # fmt: skip
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="KEEP-schedule", title="the tiles of each request are kept by batch and total length",
           trigger="two calls of as many keys with other lengths", operator="mla_decode",
           patch=lambda _: _schedule_by_total()),
    _fault(id="KEEP-lengths", title="the tiles of each request are kept for a tensor of lengths",
           trigger="lengths that are edited in place", operator="mla_decode",
           patch=lambda _: _schedule_by_tensor()),
    _fault(id="KEEP-hash", title="the parts of requests are kept by a hash of the lengths",
           trigger="calls whose lengths have one polynomial hash", operator="mla_decode",
           patch=lambda _: _schedule_by_hash()),
    _fault(id="KEEP-keys", title="offsets of keys are kept by those of queries",
           trigger="two packs of equal lengths of queries, and other lengths of keys",
           patch=lambda _: _keys_by_queries()),
    _fault(id="KEEP-rows", title="a sequence without keys has the rows that an earlier one left",
           trigger="a call with empty keys after one without", stage="partial", outputs=("o",),
           patch=lambda _: _rows_without_keys_kept()),
    _fault(id="KEEP-mask", title="a compiled kernel has the mask of its first call",
           trigger="two calls of one shape, one of them causal", stage="scores",
           patch=lambda _: _mask_by_shape()),
    _fault(id="KEEP-dk", title="keys that no query sees have the dk that an earlier backward left",
           trigger="a pack with a sequence of keys without queries, after another backward",
           stage="dkv", outputs=("dk",), patch=lambda _: _dk_kept()),
    _fault(id="KEEP-merge", title="rows that are empty in both states are those of the call before",
           trigger="a merge of empty rows after one of others of its shape", stage="combine",
           operator="merge_state", outputs=("o",), patch=lambda _: _empty_rows_merged()),
    _fault(id="KEEP-output", title="an output that comes back is the copy of it that was kept",
           trigger="a merge whose output is edited in place and merged again", stage="combine",
           operator="merge_state", outputs=("o",), patch=lambda _: _output_kept()),
    _fault(id="KEEP-rows-on", title="rows of a request that has one key more are those kept",
           trigger="a call with one key more a request, whose pages hold other rows by now",
           operator="mla_decode", patch=lambda _: _rows_that_go_on()),
    _fault(id="KEEP-splits", title="partial states that a call before left are merged",
           trigger="a request of fewer splits of 256 keys than its number had in a call before",
           operator="mla_decode", stage="combine", patch=lambda _: _splits_kept()),
    _fault(id="KEEP-plan", title="lengths are kept by the number of blocks of each request",
           trigger="over 1,536 keys, a longer request of as many blocks in a call before",
           operator="mla_decode", patch=lambda _: _plan_by_blocks()),
    _fault(id="KEEP-lists", title="the lengths of lists are kept by their sum",
           trigger="two calls whose lengths agree in their sum", operator="sparse_attention",
           patch=lambda _: _lists_by_length()),
    *(
        _fault(id=f"EMPTY-dkv{word}", title=f"dk and dv of keys that no query of a pack sees,"
               f" {said}, are not written",
               trigger=f"a pack, {said}, with a sequence of keys without queries, gradients",
               reference="facebookresearch/xformers#456", stage="dkv", outputs=("dk", "dv"),
               patch=lambda _, causal=causal: _unwritten_gradients(causal=causal))
        for word, said, causal in MASKS
    ),
    *(
        _fault(id=f"EMPTY-rows{word}", title=f"o of queries without keys in a pack, {said}, is not"
               " written",
               trigger=f"a pack, {said}, with a sequence of queries without keys",
               reference="class: memory that is not initialised", stage="partial", outputs=("o",),
               patch=lambda _, causal=causal: _unwritten_rows(causal=causal))
        for word, said, causal in MASKS
    ),
)  # fmt: skip
