"""Faults of rows that are wider than a tile of 128 columns and have many tiles: sums that no longer
fit registers are stored between tiles in the format of q.

A blind port was accepted with one: smoke had wide rows over two tiles alone, where a sum is rounded
once more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.attention.backward import staged
from kdaverify.faults.attention.kernel import EVERY, AttentionPatch, KernelRequest, patched
from kdaverify.faults.attention.list_kernel import ListPatch
from kdaverify.faults.fault import Fault
from oracles.attention.backward import AttentionBackward, Given
from oracles.attention.backward import dk as right_dk
from oracles.attention.backward import dq as right_dq
from oracles.attention.backward import dv as right_dv
from oracles.attention.design import OnlineDesign
from oracles.attention.pipeline import AttentionPipeline, PackedRows, Running
from oracles.attention.pipeline import accumulate as right_accumulate

TILE: Final = 64
WIDE: Final = 128
DESIGN: Final = OnlineDesign(block=TILE)
"""A tile as kernels have it: with tiles of 16 the errors show over 66 keys."""


def _narrow_o(kind: list[torch.dtype]) -> AttentionPatch:
    """Args: kind: the format of q, which is set here in a call of requests."""

    def request(r: KernelRequest) -> KernelRequest:
        kind[0] = r.q.dtype
        return r

    def accumulate(
        run: AttentionPipeline, state: Running, S: Tensor, v: Tensor, visible: Tensor
    ) -> Running:
        if v.shape[-1] > WIDE:
            state = replace(state, acc=state.acc.to(kind[0]).to(state.acc.dtype))
        return right_accumulate(run, state, S, v, visible)

    return patched(design=DESIGN, request=request, accumulate=accumulate)


def _narrow_o_of_lists() -> ListPatch:
    kind = [torch.float32]

    def call(right: Callable[..., Any], given: dict[str, Any]) -> Any:
        kind[0] = given["q"].dtype
        return right(**given)

    return ListPatch(attention=_narrow_o(kind), call=call)


def _narrow_dq() -> AttentionPatch:
    """What is added is what the rounded sum grows by."""
    kind, total = [torch.float32], list[Tensor]()

    def request(r: KernelRequest) -> KernelRequest:
        kind[0] = r.q.dtype
        total.clear()
        return r

    def dq(run: AttentionBackward, dS: Tensor, rows: PackedRows) -> Tensor:
        found = right_dq(run, dS, rows)
        if rows.k.shape[-1] <= WIDE:
            return found
        before = total[-1] if total else torch.zeros_like(found)
        total.append((before + found).to(kind[0]).to(found.dtype))
        return total[-1] - before

    return replace(staged(dq=dq), design=DESIGN, backward_request=request)


def _by_tiles(kind: torch.dtype, parts: list[Tensor]) -> Tensor:
    found = torch.zeros_like(parts[0])
    for part in parts:
        found = (found + part).to(kind).to(part.dtype)
    return found


def _narrow_dkv() -> AttentionPatch:
    """Sums over the queries, of which every 64 are a tile."""
    kind = [torch.float32]

    def request(r: KernelRequest) -> KernelRequest:
        kind[0] = r.q.dtype
        return r

    def tiles(count: int) -> list[slice]:
        return [slice(at, at + TILE) for at in range(0, count, TILE)]

    def dk(run: AttentionBackward, dS: Tensor, rows: PackedRows) -> Tensor:
        if rows.q.shape[-1] <= WIDE or not dS.shape[1]:
            return right_dk(run, dS, rows)
        parts = [right_dk(run, dS[:, at], rows.some(at)) for at in tiles(dS.shape[1])]
        return _by_tiles(kind[0], parts)

    def dv(run: AttentionBackward, P: Tensor, given: Given) -> Tensor:
        if given.do.shape[-1] <= WIDE or not P.shape[1]:
            return right_dv(run, P, given)
        parts = [right_dv(run, P[:, at], given.rows(at)) for at in tiles(P.shape[1])]
        return _by_tiles(kind[0], parts)

    return replace(staged(dk=dk, dv=dv), backward_request=request)


_fault = partial(
    Fault, kind="C", dtypes=EVERY, outputs=("o",), operator="attention", stage="partial",
    reference="class: wide rows",
)  # fmt: skip
# fmt: off
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="WIDE-o", title=f"the accumulator of {WIDE} columns and more is rounded by tiles",
           trigger=f"d_v > {WIDE}, many tiles of keys", patch=lambda _: _narrow_o([torch.float32])),
    _fault(id="WIDE-dq", title=f"dq of {WIDE} columns and more is rounded by tiles of keys",
           trigger=f"d_k > {WIDE}, many tiles of keys, gradients", stage="dq", outputs=("dq",),
           patch=lambda _: _narrow_dq()),
    _fault(id="WIDE-dkv",
           title=f"dk and dv of {WIDE} columns and more are rounded by tiles of queries",
           trigger=f"d_k or d_v > {WIDE}, many tiles of queries, gradients", stage="dkv",
           outputs=("dk", "dv"), patch=lambda _: _narrow_dkv()),
    _fault(id="WIDE-decode",
           title=f"the accumulator of {WIDE} latent columns and more is rounded by tiles",
           trigger=f"d_v > {WIDE}, many tiles of keys", operator="mla_decode",
           patch=lambda _: _narrow_o([torch.float32])),
    _fault(id="WIDE-lists",
           title=f"the accumulator of {WIDE} columns and more is rounded by tiles of a list",
           trigger=f"d_v > {WIDE}, many tiles of entries", operator="sparse_attention",
           patch=lambda _: _narrow_o_of_lists()),
)
# fmt: on
