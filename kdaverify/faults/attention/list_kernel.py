"""A conforming kernel of attention over lists of slots with every part replaceable: the pipeline of
`faults.attention.kernel` over rows that it gathers, dequantised first where they are quantised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.functional import pad

from kdaverify.adapters.operator_kernel import FunctionAdapter, shipped
from kdaverify.budgets.attention.contract import AttentionContract
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


def added(slots: Tensor, named: Named, found: Keys) -> None:
    """dk of a list, and dv in the first d_v columns, added to the gradients of the slots."""
    (at, seen), rows = named, summed(found)
    slots.index_add_(0, at[seen], rows[seen])


def summed(found: Keys) -> Tensor:
    """The gradient of rows that are keys and, in their first columns, values."""
    dk, dv = found
    return dk + pad(dv, (0, dk.shape[2] - dv.shape[2]))


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
        named_backward: the same in the backward; None: as the forward has it.
        add: (gradients of the slots, what is named, dk and dv [topk, h_kv, d]) adds the latter.
        gather: (rows, what is named) -> rows of the list, and which count.
        dequantise: quantised rows -> keys and values.
        call: (right function, arguments) -> what the whole call returns.
    """

    attention: AttentionPatch = field(default_factory=AttentionPatch)
    named: Callable[[QueryList], Named] = as_given
    named_backward: Callable[[QueryList], Named] | None = None
    add: Callable[[Tensor, Named, Keys], None] = added
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
    B, _, topk = indices.shape
    lengths = [topk] * B if topk_length is None else [int(n) for n in topk_length]
    run = ListRun(patch, indices.long(), lengths, d_v, float(softmax_scale))
    return _DifferentiableLists.apply(run, q, cache, sink)  # pyright: ignore[reportReturnType]


class ListKernel(AttentionKernel):
    """The pipeline of one query: its dk and dv are stored once those of all are summed."""

    def contract(self, dtype: torch.dtype) -> AttentionContract:
        return super().contract(dtype).of_shared_keys()


@dataclass(frozen=True)
class ListRun:
    """One call, query by query."""

    patch: ListPatch
    indices: Tensor
    lengths: list[int]
    d_v: int
    scale: float

    def queries(
        self, named: Callable[[QueryList], Named], q: Tensor, cache: Tensor, sink: Tensor | None
    ) -> Iterator[tuple[ListKernel, KernelRequest, Named]]:
        (B, s_q), slots = q.shape[:2], cache.flatten(0, 1)
        rows = _rows(self.patch, slots, self.d_v, q.dtype)
        for b, i in ((b, i) for b in range(B) for i in range(s_q)):
            where = named(
                QueryList(self.indices[b, i], self.lengths[b], len(slots), cache.shape[1])
            )
            (k, v), seen = self.patch.gather(rows, where)
            query, k, v = (x.transpose(0, 1) for x in (q[b, i : i + 1], k, v))
            request = KernelRequest(b, B, query, k, v, self.scale, causal=False, sink=sink)
            patch = replace(self.patch.attention, visible=partial(_visible, seen))
            yield ListKernel(patch), request, where


class _DifferentiableLists(torch.autograd.Function):
    """The call with its own backward."""

    @staticmethod
    def forward(ctx: Any, run: ListRun, *tensors: Any) -> Outputs:
        q, *_ = tensors
        queries = run.queries(run.patch.named, *tensors)
        ctx.run, ctx.stored = run, [kernel.forward(request) for kernel, request, _ in queries]
        ctx.save_for_backward(*tensors)
        o, lse = (
            torch.stack(parts).unflatten(0, q.shape[:2]).squeeze(3)
            for parts in zip(*ctx.stored, strict=True)
        )
        return o.contiguous().to(q.dtype), lse.transpose(1, 2).contiguous().float()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (q, cache, sink), run, (do, dlse) = ctx.saved_tensors, ctx.run, grads
        named = run.patch.named_backward or run.patch.named
        of_rows = (x.flatten(0, 1).unsqueeze(2) for x in (do, dlse.transpose(1, 2)))
        losses = zip(*of_rows, strict=True)
        work = zip(run.queries(named, q, cache, sink), ctx.stored, losses, strict=True)
        slots = torch.zeros_like(cache.flatten(0, 1), dtype=torch.float32)
        dq, dsink = list[Tensor](), list[Tensor]()
        for (kernel, request, where), stored, loss in work:
            of_q, dk, dv, *of_sink = kernel.backward(request, stored, loss)
            dq.append(of_q)
            dsink += of_sink
            run.patch.add(slots, where, (dk.transpose(0, 1), dv.transpose(0, 1)))
        dcache = slots.view(cache.shape).to(cache.dtype)
        whole = None if sink is None else torch.stack(dsink).sum(0)
        return None, torch.stack(dq).view(q.shape).to(q.dtype), dcache, whole


def _visible(seen: Tensor, _: KernelRequest) -> Tensor:
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
    options: dict[str, Any] = {
        "dtypes": dtypes,
        "invalid": "outside",
        "cache": CACHES[host],
        **more,
    }
    if CACHES[host] == "rows":
        options |= {"gradients": True, "lse_gradient": "given"}
    return shipped("sparse_attention", partial(list_attention, patch), name, **options)


def planted(patch: ListPatch | None, fault: Fault) -> FunctionAdapter:
    """The implementation with a fault; without one, the right one that it is held against."""
    made = patch or ListPatch()
    return adapted(made, fault.operator, f"fault:{fault.id}", dtypes=fault.dtypes)
