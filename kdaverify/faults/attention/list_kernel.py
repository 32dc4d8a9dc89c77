"""A conforming kernel of attention over lists of slots with every part replaceable: the pipeline of
`faults.attention.kernel` over rows that it gathers, dequantised first where they are quantised.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.frameworks import FRAMEWORKS
from kdaverify.adapters.operator_kernel import FunctionAdapter, operator_kernel
from kdaverify.faults.attention.kernel import (
    EVERY,
    AttentionKernel,
    AttentionPatch,
    KernelRequest,
    Outputs,
)
from kdaverify.faults.fault import Fault
from oracles.attention.fp8 import Fp8Rows, dequantised, of_bytes


@dataclass(frozen=True)
class QueryList:
    """The list of one query.

    Args:
        entries: [topk] int64, as they are given; length: how many count.
        slots, page: of the cache.
    """

    entries: Tensor
    length: int
    slots: int
    page: int

    @property
    def seen(self) -> Tensor:
        """[topk] Entries that name a slot and count."""
        return (
            (self.entries >= 0)
            & (self.entries < self.slots)
            & (torch.arange(len(self.entries)) < self.length)
        )


Named = tuple[Tensor, Tensor]
"""Which slot each entry is read from, and whether it counts."""
Keys = tuple[Tensor, Tensor]
"""Rows of keys and of values."""


def as_given(one: QueryList) -> Named:
    return one.entries.masked_fill(~one.seen, 0), one.seen


def gathered(rows: Keys, named: Named) -> tuple[Keys, Tensor]:
    """The rows of a list, 0 where an entry names nothing, and which count."""
    at, seen = named
    k, v = (x[at].masked_fill(~seen[:, None, None], 0.0) for x in rows)
    return (k, v), seen


def as_keys(parts: Fp8Rows) -> Keys:
    """The same rows as keys and as values."""
    whole = dequantised(parts)
    return whole, whole[..., : parts.codes.shape[-1]]


@dataclass(frozen=True)
class ListPatch:
    """What is replaced; by default nothing.

    Args:
        attention: of the pipeline behind the gather.
        named: (list) -> which slots are read, and which count.
        gather: (rows, what is named) -> rows of the list, and which count.
        dequantise: quantised rows -> keys and values.
        call: (right function, arguments) -> what the whole call returns.
    """

    attention: AttentionPatch = field(default_factory=AttentionPatch)
    named: Callable[[QueryList], Named] = as_given
    gather: Callable[[Keys, Named], tuple[Keys, Tensor]] = gathered
    dequantise: Callable[[Fp8Rows], Keys] = as_keys
    call: Callable[[Callable[..., Any], dict[str, Any]], Any] | None = None


def list_attention(
    patch: ListPatch,
    q: Tensor,
    cache: Tensor,
    indices: Tensor,
    *,
    topk_length: Tensor | None,
    d_v: int,
    softmax_scale: float,
    sink: Tensor | None,
) -> Outputs:
    """q [B, s_q, H, d_k] -> o [B, s_q, H, d_v], lse [B, H, s_q]."""
    given: dict[str, Any] = {"q": q, "cache": cache, "indices": indices, "topk_length": topk_length}
    given |= {"d_v": d_v, "softmax_scale": softmax_scale, "sink": sink}
    right = partial(_attention, patch)
    return right(**given) if patch.call is None else patch.call(right, given)


def _attention(
    patch: ListPatch,
    *,
    q: Tensor,
    cache: Tensor,
    indices: Tensor,
    topk_length: Tensor | None,
    d_v: int,
    softmax_scale: float,
    sink: Tensor | None,
) -> Outputs:
    B, s_q, topk = indices.shape
    lengths = [topk] * B if topk_length is None else [int(n) for n in topk_length]
    rows = _rows(patch, cache.flatten(0, 1), d_v, q.dtype)
    found = list[Outputs]()
    for b, i in ((b, i) for b in range(B) for i in range(s_q)):
        one = QueryList(indices[b, i].long(), lengths[b], len(rows[0]), cache.shape[1])
        (k, v), seen = patch.gather(rows, patch.named(one))
        query, k, v = (x.transpose(0, 1) for x in (q[b, i : i + 1], k, v))
        request = KernelRequest(b, B, query, k, v, float(softmax_scale), causal=False, sink=sink)
        kernel = AttentionKernel(replace(patch.attention, visible=partial(_visible, seen)))
        found.append(kernel.forward(request))
    o, lse = (
        torch.stack(parts).unflatten(0, (B, s_q)).squeeze(3) for parts in zip(*found, strict=True)
    )
    return o.contiguous().to(q.dtype), lse.transpose(1, 2).contiguous().float()


def _visible(seen: Tensor, request: KernelRequest) -> Tensor:
    del request
    return seen[None]


def _rows(patch: ListPatch, slots: Tensor, d_v: int, dtype: torch.dtype) -> Keys:
    if slots.dtype is not torch.uint8:
        return slots, slots[..., :d_v]
    k, v = patch.dequantise(of_bytes(slots, d_v))
    return k.to(dtype), v.to(dtype)


CACHES: Final = {"sparse_attention": "rows", "sparse_fp8": "fp8"}
"""The cache that the kernel takes, by the host of its faults."""


def adapted(
    patch: ListPatch, host: str, name: str, *, dtypes: tuple[str, ...] = EVERY, **more: Any
) -> FunctionAdapter:
    """The kernel as an adapter."""
    options = {"name": name, "dtypes": dtypes, "invalid": "outside", "cache": CACHES[host], **more}
    function = partial(list_attention, patch)
    return operator_kernel("sparse_attention", function, options, FRAMEWORKS["torch"])


def planted(patch: ListPatch | None, fault: Fault) -> FunctionAdapter:
    """The implementation with a fault; without one, the right one that it is held against."""
    made = patch or ListPatch()
    return adapted(made, fault.operator, f"fault:{fault.id}", dtypes=fault.dtypes)
