"""Faults that show where two axes of a tensor are exchanged in memory: tensors that fill their
memory are read as if their axes were in order.

A blind port was accepted that read the second LSE of a merge so: engines pass a transposed view.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.attention.kernel import EVERY, AttentionPatch
from kdaverify.faults.attention.list_kernel import ListPatch
from kdaverify.faults.fault import Fault, with_gradient, with_gradients

Call = Callable[..., Any]


def _in_order(x: Tensor, *, rows: int = 0) -> Tensor:
    """A tensor that fills its memory, and whose last `rows` axes are in order there, read as if all
    its axes were.
    """
    strides, in_order = x.stride(), torch.empty(x.shape, device="meta").stride()
    extent = 1 + sum((n - 1) * stride for n, stride in zip(x.shape, strides, strict=True))
    ordered = strides[x.ndim - rows :] == in_order[x.ndim - rows :]
    return x.as_strided(x.shape, in_order) if extent == x.numel() and ordered else x


def _read_in_order(name: str, *, rows: int = 0) -> Callable[[Call, dict[str, Any]], Any]:
    """Calls in which one argument is read so."""

    def called(right: Call, given: dict[str, Any]) -> Any:
        return right(**{**given, name: _in_order(given[name], rows=rows)})

    return called


def _gradient_in_order(name: str) -> Callable[[Call, dict[str, Any]], Any]:
    """The gradient of one argument lies in the order of its memory."""

    def called(right: Call, given: dict[str, Any]) -> Any:
        x = given[name]
        moved, stride = _in_order(x, rows=2).stride() != x.stride(), x.stride()

        def change(dx: Tensor) -> Tensor:
            written = dx.contiguous()
            return written.as_strided(dx.shape, stride) if moved else written

        return right(**{**given, name: with_gradient(change, x)})

    return called


def _cotangents_in_order(which: int) -> Callable[[Call, dict[str, Any]], Any]:
    """Incoming gradients of one of the outputs are read as if in order."""

    def change(*given: Tensor) -> list[Tensor]:
        return [_in_order(dy, rows=2 - n) if n == which else dy for n, dy in enumerate(given)]

    def called(right: Call, given: dict[str, Any]) -> Any:
        o, lse = right(**given)
        return with_gradients(change, o, lse) if o.ndim > 3 else (o, lse)

    return called


_fault = partial(
    Fault, kind="B", dtypes=EVERY, outputs=("o", "lse"), operator="attention", stage="gather",
    reference="class: order of axes in memory",
)  # fmt: skip
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="VIEW-lse", title="the second LSE is read as [H, T] in memory",
           reference="vllm-project/vllm#22003", trigger="LSE that is a transposed view",
           operator="merge_state", stage="combine",
           patch=lambda _: AttentionPatch(merge=_read_in_order("lse_b"))),
    _fault(id="VIEW-state", title="rows of the second o are read in the order [T, H]",
           trigger="o that lies as [H, T, d_v]", operator="merge_state", stage="combine",
           outputs=("o",), patch=lambda _: AttentionPatch(merge=_read_in_order("o_b", rows=1))),
    _fault(id="VIEW-table", title="the table is read as [B, pages] in memory",
           trigger="a table that is a transposed view", operator="mla_decode",
           outputs=("o", "lse", "call"),
           patch=lambda _: AttentionPatch(decode=_read_in_order("block_table"))),
    _fault(id="VIEW-queries", title="queries are read in the order [B, s_q]",
           trigger="q that lies as [s_q, B, H, d_k]", operator="mla_decode",
           patch=lambda _: AttentionPatch(decode=_read_in_order("q", rows=2))),
    _fault(id="VIEW-lists", title="lists are read in the order [B, s_q]",
           trigger="indices that lie as [s_q, B, topk]", operator="sparse_attention",
           patch=lambda _: ListPatch(call=_read_in_order("indices", rows=1))),
    _fault(id="VIEW-slots", title="the cache is read in the order [pages, page]",
           trigger="a cache that lies as [page, pages, h_kv, d_k]", operator="sparse_attention",
           patch=lambda _: ListPatch(call=_read_in_order("cache", rows=2))),
    _fault(id="VIEW-keys", reference="ROCm/pytorch#3230",
           title="keys are read in the order [B, s_k]",
           trigger="k that lies as [s_k, B, h_kv, d_k]",
           patch=lambda _: AttentionPatch(attention=_read_in_order("k", rows=2))),
    _fault(id="VIEW-dq", title="dq is written in order, and returned with the strides of q",
           trigger="q that lies as [s_q, B, H, d_k], gradients", stage="dq", outputs=("dq",),
           patch=lambda _: AttentionPatch(attention=_gradient_in_order("q"))),
    _fault(id="VIEW-dk", title="dk is written in order, and returned with the strides of k",
           trigger="k that lies as [s_k, B, h_kv, d_k], gradients", stage="dkv", outputs=("dk",),
           patch=lambda _: AttentionPatch(attention=_gradient_in_order("k"))),
    _fault(id="VIEW-do", reference="Dao-AILab/flash-attention#355",
           title="incoming gradients of o are read in the order [B, s_q]",
           trigger="do that lies as [s_q, B, H, d_v]", stage="dkv", outputs=("dq", "dk", "dv"),
           patch=lambda _: AttentionPatch(attention=_cotangents_in_order(0))),
    _fault(id="VIEW-dlse", title="incoming gradients of LSE are read in the order [B, H]",
           trigger="dlse that lies as [H, B, s_q]", stage="dkv", outputs=("dq", "dk"),
           patch=lambda _: AttentionPatch(attention=_cotangents_in_order(1))),
)  # fmt: skip
