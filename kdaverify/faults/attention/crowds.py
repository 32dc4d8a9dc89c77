"""Faults that begin past a warp of requests that have several pages or tiles each, or past the
65,535 programs of an axis of a grid.

Blind ports were accepted that summed the pages before a request over the lanes of one warp, and
that cut the rows of a merge at the limit of a grid: requests past the 32nd had one page each.
"""

from __future__ import annotations

from collections.abc import Callable
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
    gathered,
)
from kdaverify.faults.attention.list_kernel import ListPatch
from kdaverify.faults.fault import Fault

WARP, BLOCK, TILE, PROGRAMS, INDICES = 32, 128, 64, 65_535, 65_536
"""Lanes of a warp, threads of a block, rows of a tile; programs of the second and third axis of a
grid, and what 16 bits count."""
HEADS, ROWS, APART = 8, 256, 100.0
"""Heads and rows of a tile of a merge, and the difference of mean LSE that decides for all."""
OUTWEIGHED: Final = {torch.float32: 18.0, torch.bfloat16: 9.0, torch.float16: 9.0}
"""Differences of LSE whose weight is below a spacing of 1, by format."""
Call = Callable[..., Any]


def _last_page_unread(paged: Paged, request: int) -> Tensor:
    """The scan over lanes begins again at each warp: the final page has no place in its sum."""
    length, page = paged.lengths[request], paged.cache.shape[1]
    whole = max(length - 1, 0) // page * page
    if request < WARP or not whole:
        return gathered(paged, request)
    lengths = [*paged.lengths[:request], whole, *paged.lengths[request + 1 :]]
    return gathered(replace(paged, lengths=lengths), request)


def _first_page_unread(paged: Paged, request: int) -> Tensor:
    page, found = paged.cache.shape[1], gathered(paged, request)
    return found if request < BLOCK or len(found) <= page else found[page:]


def _late(request: KernelRequest) -> bool:
    return request.packed and request.index >= WARP


def _last_tile_unwritten(request: KernelRequest, o: Tensor, lse: Tensor) -> Outputs:
    first = (request.s_q - 1) // TILE * TILE
    if not _late(request) or not first:
        return o, lse
    lost = torch.arange(request.s_q) >= first
    return o.masked_fill(lost[:, None], 0.0), lse.masked_fill(lost, 0.0)


def _first_tile_unread(request: KernelRequest) -> KernelRequest:
    if not _late(request) or request.s_k <= TILE:
        return request
    return replace(request, k=request.k[:, TILE:], v=request.v[:, TILE:])


def _lengths(given: dict[str, Any]) -> Tensor:
    entries, lengths = given["indices"], given["topk_length"]
    return torch.full((len(entries),), entries.shape[2]).int() if lengths is None else lengths


def _last_entries_unread(right: Call, given: dict[str, Any]) -> Any:
    lengths = _lengths(given)
    whole = (lengths - 1).clamp(min=0) // TILE * TILE
    late = (torch.arange(len(lengths)) >= WARP) & (whole > 0)
    return right(**{**given, "topk_length": torch.where(late, whole, lengths)})


def _lengths_of_lanes(right: Call, given: dict[str, Any]) -> Any:
    """The length of a request is that of its lane in the first warp."""
    lengths = _lengths(given)
    return right(**{**given, "topk_length": lengths[torch.arange(len(lengths)) % WARP]})


def _rows_cut(right: Call, given: dict[str, Any]) -> Outputs:
    """Rows (entry, query, head) past the limit of the grid are not written."""
    o, lse = right(**given)
    rows = o[..., 0].numel()
    lost = (torch.arange(rows) >= PROGRAMS).view(o.shape[:3])
    return o.masked_fill(lost[..., None], 0.0), lse.masked_fill(lost.transpose(1, 2), 0.0)


def _lse_in_16_bits(right: Call, given: dict[str, Any]) -> Outputs:
    """LSE is written at an offset of 16 bits, and read there."""
    o, lse = right(**given)
    return o, lse.flatten()[torch.arange(lse.numel()) % INDICES].view(lse.shape)


def _merge_cut(right: Call, given: dict[str, Any]) -> Outputs:
    o, lse = right(**given)
    lost = (torch.arange(o[..., 0].numel()) >= PROGRAMS).view(o.shape[:2])
    kept = torch.where(lost[..., None], given["o_a"], o)
    return kept, torch.where(lost.mT, given["lse_a"], lse)


def _take(found: Outputs, given: dict[str, Any], part: str, rows: slice, heads: Tensor) -> None:
    """These heads of a tile become those of one part."""
    o, lse = found
    o[rows, heads] = given[f"o_{part}"][rows, heads]
    lse[heads, rows] = given[f"lse_{part}"][heads, rows]


def _tiles_by_mean(right: Call, given: dict[str, Any]) -> Outputs:
    """A tile of 256 rows is that of the first state where mean LSE are 100 apart."""
    o, lse = (x.clone() for x in right(**given))
    if lse.shape[0] < HEADS or lse.shape[1] < 2 * ROWS:
        return o, lse
    for first in range(0, lse.shape[1], ROWS):
        rows = slice(first, first + ROWS)
        apart = given["lse_a"][:, rows].mean(1) - given["lse_b"][:, rows].mean(1) > APART
        _take((o, lse), given, "a", rows, apart)
    return o, lse


def _tiles_of_one_part(right: Call, given: dict[str, Any]) -> Outputs:
    """A tile of 64 rows is that of the part which has nearly all weight in each of them."""
    o, lse = (x.clone() for x in right(**given))
    least = OUTWEIGHED[o.dtype]
    for first in range(0, lse.shape[1] - TILE + 1, TILE):
        rows = slice(first, first + TILE)
        for more, less in (("a", "b"), ("b", "a")):
            gap = given[f"lse_{more}"][:, rows] - given[f"lse_{less}"][:, rows]
            _take((o, lse), given, more, rows, (gap > least).all(1))
    return o, lse


_fault = partial(
    Fault, kind="B", dtypes=EVERY, outputs=("o", "lse"), operator="mla_decode", stage="gather",
    reference="class: many requests",
)  # fmt: skip
_grid = partial(
    _fault, kind="F", stage="partial", reference="class: grids of at most 65,535 programs"
)
FAULTS: Final[tuple[Fault, ...]] = (
    _fault(id="SCAN-pages", title=f"requests from number {WARP} on lose the last of several pages",
           trigger=f"more than {WARP} requests, several pages",
           patch=lambda _: AttentionPatch(gather=_last_page_unread)),
    _fault(id="SCAN-block",
           title=f"requests from number {BLOCK} on lose the first of several pages",
           trigger=f"more than {BLOCK} requests, several pages",
           patch=lambda _: AttentionPatch(gather=_first_page_unread)),
    _fault(id="SCAN-rows",
           title=f"sequences from number {WARP} on lose the last of several tiles of queries",
           trigger=f"a pack of more than {WARP} sequences, several tiles of queries",
           operator="attention", stage="partial",
           patch=lambda _: AttentionPatch(returned=_last_tile_unwritten)),
    _fault(id="SCAN-keys",
           title=f"sequences from number {WARP} on lose the first of several tiles of keys",
           trigger=f"a pack of more than {WARP} sequences, several tiles of keys",
           operator="attention", patch=lambda _: AttentionPatch(request=_first_tile_unread)),
    _fault(id="SCAN-lists",
           title=f"requests from number {WARP} on lose the last of several tiles of entries",
           trigger=f"more than {WARP} requests, several tiles of entries",
           operator="sparse_attention", patch=lambda _: ListPatch(call=_last_entries_unread)),
    _fault(id="SCAN-lengths",
           title=f"topk_length of requests from number {WARP} on is that of the first ones",
           trigger=f"more than {WARP} requests of several lengths", operator="sparse_attention",
           patch=lambda _: ListPatch(call=_lengths_of_lanes)),
    _grid(id="GRID-decode", title=f"rows from {PROGRAMS:,} on are not written",
          trigger=f"B s_q H > {PROGRAMS:,}", patch=lambda _: AttentionPatch(decode=_rows_cut)),
    _grid(id="GRID-decode-lse", title="LSE is written at offsets of 16 bits",
          trigger=f"B s_q H > {INDICES:,}", outputs=("lse",), stage="lse",
          patch=lambda _: AttentionPatch(decode=_lse_in_16_bits)),
    _grid(id="GRID-lists", title=f"rows from {PROGRAMS:,} on are not written",
          trigger=f"B s_q H > {PROGRAMS:,}", operator="sparse_attention",
          patch=lambda _: ListPatch(call=_rows_cut)),
    _grid(id="GRID-lists-lse", title="LSE is written at offsets of 16 bits",
          trigger=f"B s_q H > {INDICES:,}", outputs=("lse",), stage="lse",
          operator="sparse_attention", patch=lambda _: ListPatch(call=_lse_in_16_bits)),
    _grid(id="GRID-merge", title=f"rows from {PROGRAMS:,} on are those of the first state",
          trigger=f"T H > {PROGRAMS:,}", operator="merge_state", stage="combine",
          patch=lambda _: AttentionPatch(merge=_merge_cut)),
    _fault(id="TILE-merge", title="a tile is that of the first state where mean LSE are 100 apart",
           trigger="eight heads, 512 rows, one of which is empty in the second state",
           operator="merge_state", stage="combine", reference="class: rows of a tile",
           patch=lambda _: AttentionPatch(merge=_tiles_by_mean)),
    _fault(id="TILE-weights", title="a tile is that of the part with nearly all weight",
           trigger="64 rows whose LSE are more than 9 apart, 18 in fp32, of large o",
           operator="merge_state", stage="combine", reference="class: rows of a tile",
           patch=lambda _: AttentionPatch(merge=_tiles_of_one_part)),
    _grid(id="GRID-merge-lse", title="LSE is written at offsets of 16 bits",
          trigger=f"T H > {INDICES:,}", outputs=("lse",), operator="merge_state", stage="lse",
          patch=lambda _: AttentionPatch(merge=_lse_in_16_bits)),
)  # fmt: skip
