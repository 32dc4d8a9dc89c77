"""Faults that show in rows that are exactly 0, at LSE far from 0, and under losses whose incoming
gradients differ by powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.faults.attention.kernel import (
    EVERY,
    AttentionPatch,
    KernelRequest,
    bottom_right,
)
from kdaverify.faults.attention.list_kernel import Keys, ListPatch, Named, gathered
from kdaverify.faults.fault import Fault, squeezed, with_gradient

LOG2E: Final = math.log2(math.e)


def _without_zero_keys(request: KernelRequest) -> Tensor:
    return bottom_right(request) & ~(request.k == 0).all(-1)[:, None]


def _without_zero_tokens(request: KernelRequest) -> Tensor:
    """Those that are 0 in all heads."""
    return bottom_right(request) & ~(request.k == 0).all(-1).all(0)


def _without_zero_values(request: KernelRequest) -> Tensor:
    return bottom_right(request) & ~(request.v == 0).all(-1)[:, None]


def _without_zero_slots(rows: Keys, named: Named) -> tuple[Keys, Tensor]:
    (k, v), seen = gathered(rows, named)
    return (k, v), seen & ~(k == 0).all(-1).all(-1)


def _zero_rows_are_empty(right: Callable[..., Any], given: dict[str, Any]) -> Any:
    empty = {
        f"lse_{n}": given[f"lse_{n}"].masked_fill((given[f"o_{n}"] == 0).all(-1).mT, -torch.inf)
        for n in "ab"
    }
    return right(**{**given, **empty})


def _rounded_products(_: Callable[..., Any], given: dict[str, Any]) -> Any:
    """exp2(lse c - m c), both products rounded: their errors grow with LSE."""
    a, b = (given[name] * LOG2E for name in ("lse_a", "lse_b"))
    top = torch.maximum(a, b).nan_to_num(neginf=0.0)
    w = [torch.exp2(x - top) for x in (a, b)]
    total = w[0] + w[1]
    shares = [(x / torch.where(total == 0, 1.0, total)).mT[..., None] for x in w]
    o = shares[0] * given["o_a"].float() + shares[1] * given["o_b"].float()
    lse = torch.maximum(given["lse_a"], given["lse_b"]) + total.log()
    return o.to(given["o_a"].dtype), lse


def _squeezed_loss(right: Callable[..., Any], given: dict[str, Any]) -> Any:
    o, lse = right(**given)
    return with_gradient(squeezed, o), lse


_fault = partial(
    Fault, kind="B", dtypes=EVERY, outputs=("o", "lse"), stage="scores",
    reference="class: numbers that mark memory",
)  # fmt: skip
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="ROWS-keys", title="keys of zeros are taken for padding", operator="attention",
           trigger="a key that is exactly 0 in some head",
           patch=lambda _: AttentionPatch(visible=_without_zero_keys)),
    _fault(id="ROWS-values", title="values of zeros are taken for padding", operator="attention",
           trigger="a value that is exactly 0 in some head",
           patch=lambda _: AttentionPatch(visible=_without_zero_values)),
    _fault(id="ROWS-cache", title="slots of zeros are taken for padding", operator="mla_decode",
           trigger="a cached row that is exactly 0",
           patch=lambda _: AttentionPatch(visible=_without_zero_tokens)),
    _fault(id="ROWS-lists", title="entries whose slot is 0 name nothing",
           operator="sparse_attention", trigger="a listed row that is exactly 0",
           patch=lambda _: ListPatch(gather=_without_zero_slots)),
    _fault(id="ROWS-merge", title="rows of zeros are taken for parts without keys",
           operator="merge_state", trigger="a row of o that is exactly 0, of a finite LSE",
           stage="combine", patch=lambda _: AttentionPatch(merge=_zero_rows_are_empty)),
    _fault(id="MERGE-products", kind="C", title="LSE and maximum are rounded to base 2 one by one",
           operator="merge_state", trigger="LSE of about 1,000 and more on either side of 0",
           stage="combine", outputs=("o",), dtypes=("fp32",), reference="class: merges of states",
           patch=lambda _: AttentionPatch(merge=_rounded_products)),
    _fault(id="LOSS-fp16", kind="C", title="do goes through fp16 under one power of two an entry",
           operator="attention", trigger="heads whose do is 2^-18 of the largest, gradients",
           stage="dkv", outputs=("dq", "dk", "dv"), dtypes=("bf16",),
           reference="class: formats of incoming gradients",
           patch=lambda _: AttentionPatch(attention=_squeezed_loss)),
    _fault(id="LOSS-lists", kind="C", title="do goes through fp16 under one power of two a request",
           operator="sparse_attention", trigger="heads whose do is 2^-18 of the largest, gradients",
           stage="dkv", outputs=("dq", "dcache"), dtypes=("bf16",),
           reference="class: formats of incoming gradients",
           patch=lambda _: ListPatch(call=_squeezed_loss)),
)  # fmt: skip
