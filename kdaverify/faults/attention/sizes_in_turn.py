"""Faults that show at sizes, LSE and sums that few calls have: pages whose reciprocal is inexact,
wide rows of keys, lengths that a split divides, LSE of exactly 0, and gradients that cancel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    bottom_right,
)
from kdaverify.faults.fault import Fault

COLUMNS: Final = 64
"""Of keys beyond those of values, which one tile holds."""
SPLIT: Final = 384
TILE, BLOCK = 64, 16
"""Rows of a tile, of queries and heads of a group, and keys of a block."""
FLUSHED: Final = 1024
"""Keys after which dq leaves the registers."""


def _page_by_product(paged: Paged, request: int) -> Tensor:
    page, token = paged.cache.shape[1], torch.arange(paged.lengths[request])
    column = (token.float() * (torch.tensor(1.0) / page)).floor().long()
    return paged.cache[paged.table[request, column].long(), token % page]


def _one_tile(request: KernelRequest) -> KernelRequest:
    k = request.k.clone()
    k[..., request.v.shape[-1] + COLUMNS :] = 0
    return replace(request, k=k)


def _bound_of_whole_queries(request: KernelRequest) -> Tensor:
    """Rows are queries times the heads of a group. The keys of a tile end at a block after those of
    its last whole query.
    """
    seen, group = bottom_right(request), len(request.q) // len(request.k)
    if not request.causal:
        return seen
    ends = torch.arange(TILE, max(request.s_q * group, TILE), TILE)
    cut = ends[ends % group != 0] // group
    own = cut + request.s_k - request.s_q
    lost = (own > 0) & (own % BLOCK == 0)
    seen[cut[lost], own[lost]] = False
    return seen


def _empty_split(request: KernelRequest, o: Tensor, lse: Tensor) -> Outputs:
    """An empty split joins, of o and LSE 0, where splits divide the length."""
    if request.s_k == 0 or request.s_k % SPLIT:
        return o, lse
    joined = torch.logaddexp(lse, torch.zeros_like(lse))
    return (o * (lse - joined).exp()[..., None]).to(o.dtype), joined


def _zero_is_unwritten(right: Callable[..., Any], given: dict[str, Any]) -> Any:
    lse = {n: x.masked_fill(x == 0, -torch.inf) for n, x in given.items() if n.startswith("lse")}
    return right(**{**given, **lse})


def _flushed(request: KernelRequest, do: Tensor, found: Sequence[Tensor]) -> Sequence[Tensor]:
    """dq is rounded to the format of the inputs after so many keys, again and again."""
    dq, *rest = found
    if request.s_k <= FLUSHED:
        return found
    shared = request.q.shape[0] // request.k.shape[0]
    q, k, v, dy = (x.float() for x in (request.q, request.k, request.v, do))
    k, v = (x.repeat_interleave(shared, 0) for x in (k, v))
    S = (request.scale * q @ k.mT).masked_fill(~bottom_right(request), -torch.inf)
    P = S.softmax(-1).nan_to_num(0.0)
    dP = dy @ v.mT
    dS = request.scale * P * (dP - (P * dP).sum(-1, keepdim=True))
    whole = sum_ = torch.zeros_like(q)
    for at in range(0, k.shape[1], FLUSHED):
        part = dS[..., at : at + FLUSHED] @ k[:, at : at + FLUSHED]
        whole, sum_ = whole + part, (sum_ + part).to(request.q.dtype).float()
    return ((dq.float() + sum_ - whole).to(dq.dtype), *rest)


_fault = partial(Fault, kind="B", dtypes=EVERY, operator="mla_decode", outputs=("o", "lse"))
# fmt: off
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="TURN-pages", title="pages are counted by a product with a reciprocal in fp32",
           stage="gather", reference="class: sizes of pages",
           trigger="pages of 41, 47, 55, 61, 82, 83, 94, 97 tokens and others above",
           patch=lambda _: AttentionPatch(gather=_page_by_product)),
    _fault(id="TURN-columns", title=f"keys beside values have one tile of {COLUMNS} columns",
           stage="scores", reference="class: widths of keys", trigger="d_k - d_v > 64",
           patch=lambda _: AttentionPatch(request=_one_tile)),
    _fault(id="TURN-borders", title="the keys of a tile end with its last whole query",
           stage="scores", reference="class: borders of packed groups", operator="attention",
           trigger="causal, a group of 3, a query cut by a tile whose own key begins a block",
           patch=lambda _: AttentionPatch(visible=_bound_of_whole_queries)),
    _fault(id="TURN-splits", title=f"an empty split where {SPLIT} keys divide a request",
           stage="combine", reference="class: lengths of requests",
           trigger=f"requests of a multiple of {SPLIT} keys",
           patch=lambda _: AttentionPatch(returned=_empty_split)),
    _fault(id="ZERO-lse", title="an LSE of 0 is taken for memory without a result",
           operator="merge_state", stage="combine", reference="class: numbers that mark memory",
           trigger="an LSE of exactly 0: one key of logit 0",
           patch=lambda _: AttentionPatch(merge=_zero_is_unwritten)),
    _fault(id="SUMS-dq", title=f"dq is rounded to 16 bits after every {FLUSHED:,} keys",
           dtypes=("bf16", "fp16"), operator="attention", outputs=("dq",), stage="dq",
           reference="class: sums in 16 bits", kind="A",
           trigger=f"more than {FLUSHED:,} keys whose gradients cancel",
           patch=lambda _: AttentionPatch(gradients=_flushed)),
)
# fmt: on
