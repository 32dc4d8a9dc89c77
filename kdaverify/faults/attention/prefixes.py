"""Faults of decode that show where requests have pages in common, as those of a cached prefix or
of a request that was forked: which pages, a kernel has to read off the whole table.

A blind port was accepted that took requests to share all full pages where the first page and the
number of pages agree: requests of as many pages shared all of them, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kdaverify.faults.attention.kernel import (
    EVERY,
    AttentionPatch,
    KernelRequest,
    Paged,
    bottom_right,
    gathered,
)
from kdaverify.faults.fault import Fault

CROWD: Final = 8
"""Requests from which on a shared prefix is worth a pass of its own."""
CASCADE: Final = 256
"""Keys of such a prefix, at least."""


def _used(paged: Paged) -> list[int]:
    """Pages of every request."""
    page = paged.cache.shape[1]
    return [-(-n // page) for n in paged.lengths]


def _with_row(paged: Paged, request: int, row: Sequence[Tensor]) -> Tensor:
    """The tokens of a request by other pages."""
    table = paged.table.clone()
    table[request, : sum(map(len, row))] = torch.cat([*row])
    return gathered(replace(paged, table=table), request)


def _leading(equal: Tensor) -> int:
    """How many columns of a table agree before the first that does not."""
    return int(equal.int().cumprod(0).sum())


def _prefix_by_the_first_page(paged: Paged, request: int) -> Tensor:
    """All pages but the last are those of the first request whose first page and count agree."""
    used, table = _used(paged), paged.table
    count = used[request]
    if not count:
        return gathered(paged, request)
    like = (n for n in range(request + 1) if (used[n], table[n, 0]) == (count, table[request, 0]))
    lead = next(like)
    row = (table[lead, : count - 1], table[request, count - 1 : count])
    return _with_row(paged, request, row)


def _prefix_by_equal_columns(paged: Paged, request: int) -> Tensor:
    """The prefix is as long as there are columns in which a request has the first one's pages."""
    count, table = min(_used(paged)[request], _used(paged)[0]), paged.table
    agree = int((table[request, :count] == table[0, :count]).sum())
    return _with_row(
        paged, request, (table[0, :agree], table[request, agree : _used(paged)[request]])
    )


def _tokens_by_page(paged: Paged, request: int) -> Tensor:
    """A request ends where the longest ends whose final page is its own."""
    used, table = _used(paged), paged.table
    if not used[request]:
        return gathered(paged, request)
    last = [table[n, at - 1] if at else -1 for n, at in enumerate(used)]
    ends = [n for n, page in zip(paged.lengths, last, strict=True) if page == last[request]]
    lengths = [*paged.lengths]
    page = paged.cache.shape[1]
    lengths[request] = (used[request] - 1) * page + max((n - 1) % page + 1 for n in ends)
    return gathered(replace(paged, lengths=lengths), request)


def _in_common(paged: Paged, other: int) -> int:
    """Leading pages that the first request and another both have."""
    used, table = _used(paged), paged.table
    count = min(used[0], used[other % len(used)])
    return _leading(table[0, :count] == table[other % len(used), :count])


def _prefix_of_all(paged: Paged, request: int, *, other: int) -> Tensor:
    """What leading pages the first request and another have in common, all have that fill them."""
    used, table = _used(paged), paged.table
    full = paged.lengths[request] // paged.cache.shape[1] if len(used) > 1 else 0
    shared = min(_in_common(paged, other), full)
    return _with_row(paged, request, (table[0, :shared], table[request, shared : used[request]]))


def _prefix_of_a_run(paged: Paged, request: int) -> Tensor:
    """Where all begin with one page, all have what the first and the last have in common."""
    if not all(_used(paged)) or bool((paged.table[:, 0] != paged.table[0, 0]).any()):
        return gathered(paged, request)
    return _prefix_of_all(paged, request, other=-1)


def _prefix_of_a_crowd(paged: Paged, request: int) -> Tensor:
    """Many requests have what leading pages the first and the last share, from 256 keys on."""
    shared = paged.cache.shape[1] * _in_common(paged, -1)
    if len(paged.lengths) < CROWD or not CASCADE <= shared <= min(paged.lengths):
        return gathered(paged, request)
    return _prefix_of_all(paged, request, other=-1)


def _prefix_without_a_border() -> AttentionPatch:
    """Pages that lead all tables are read at once for all queries, and none of them is masked."""
    shared = dict[int, int]()

    def gather(paged: Paged, request: int) -> Tensor:
        page, table = paged.cache.shape[1], paged.table
        full = min(paged.lengths) // page if len(paged.lengths) > 1 else 0
        shared[request] = page * _leading((table[:, :full] == table[:1, :full]).all(0))
        return gathered(paged, request)

    def visible(request: KernelRequest) -> Tensor:
        return bottom_right(request) | (torch.arange(request.k.shape[1]) < shared[request.index])

    return AttentionPatch(gather=gather, visible=visible)


_fault = partial(
    Fault, kind="B", dtypes=EVERY, outputs=("o", "lse"), operator="mla_decode", stage="gather",
    reference="class: shared pages",
)  # fmt: skip
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="PREFIX-first-page",
           title="requests with equal first pages and as many pages share all but the last",
           trigger="requests of as many pages that share the first, not all",
           patch=lambda _: AttentionPatch(gather=_prefix_by_the_first_page)),
    _fault(id="PREFIX-equal-columns",
           title="the shared prefix is as long as there are equal columns of the table",
           trigger="requests that share pages behind others that they do not",
           patch=lambda _: AttentionPatch(gather=_prefix_by_equal_columns)),
    _fault(id="PREFIX-fork", title="a final page holds as many tokens as its longest request has",
           trigger="requests that share a final page, one with more tokens in it",
           patch=lambda _: AttentionPatch(gather=_tokens_by_page)),
    _fault(id="PREFIX-outer",
           title="pages that the first and the last request share are those of all",
           trigger="first and last request share leading pages, those between do not",
           patch=lambda _: AttentionPatch(gather=partial(_prefix_of_all, other=-1))),
    _fault(id="PREFIX-pair",
           title="pages that the first two requests share are those of all",
           trigger="the first two requests share leading pages, others do not",
           patch=lambda _: AttentionPatch(gather=partial(_prefix_of_all, other=1))),
    _fault(id="PREFIX-nested",
           title="requests with one first page share all that the first and the last do",
           trigger="first and last request share more leading pages than those between",
           patch=lambda _: AttentionPatch(gather=_prefix_of_a_run)),
    _fault(id="PREFIX-crowd",
           title="pages that the first of many requests and the last share are those of all",
           trigger="eight requests, the first and the last share 256 keys, others do not",
           patch=lambda _: AttentionPatch(gather=_prefix_of_a_crowd)),
    _fault(id="PREFIX-border", stage="scores",
           title="pages that all requests share have no causal border",
           trigger="causal, several queries, a request that ends with the pages that all share",
           patch=lambda _: _prefix_without_a_border()),
)  # fmt: skip
