"""Faults that show behind 16,384 keys: splits that a reduction has no lanes for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from torch import Tensor

from kdaverify.faults.attention.kernel import (
    EVERY,
    AttentionPatch,
    KernelRequest,
    Paged,
    gathered,
)
from kdaverify.faults.attention.list_kernel import ListPatch
from kdaverify.faults.fault import Fault

MOST: Final = 64 * 256
"""Keys of the splits that the reduction has lanes for."""


def _first_pages(paged: Paged, request: int) -> Tensor:
    return gathered(paged, request)[:MOST]


def _first_entries(right: Callable[..., Any], given: dict[str, Any]) -> Any:
    return right(**{**given, "indices": given["indices"][..., :MOST].contiguous()})


def _first_rows(request: KernelRequest) -> KernelRequest:
    return replace(request, k=request.k[:, :MOST], v=request.v[:, :MOST])


_fault = partial(
    Fault, kind="F", dtypes=EVERY, outputs=("o", "lse"), stage="combine",
    reference="deepseek-ai/FlashMLA#199",
)  # fmt: skip
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="LATE-pages", title=f"keys of a request past {MOST:,} are left out",
           trigger=f"more than {MOST:,} keys", operator="mla_decode",
           patch=lambda _: AttentionPatch(gather=_first_pages)),
    _fault(id="LATE-lists", title=f"entries of a list past {MOST:,} are left out",
           trigger=f"more than {MOST:,} entries", operator="sparse_attention",
           patch=lambda _: ListPatch(call=_first_entries)),
    _fault(id="LATE-rows", title=f"keys past {MOST:,} are left out",
           trigger=f"more than {MOST:,} keys", operator="attention",
           patch=lambda _: AttentionPatch(request=_first_rows)),
)  # fmt: skip
