"""What many copies of a small problem of attention are: entries, heads, sequences, requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch

from kdaverify.checks.calls.multiples import ManyCopies
from oracles.attention.calls import MlaDecodeCall

MANY: Final = 43
"""ManyCopies of seven entries: 301 of them, more than 8 bits, 1,024 with their heads."""
SCANNED: Final = 151
"""Of seven sequences: 1,057 of them, more than a block of threads sums offsets of."""
PLANNED: Final = 603
"""Of seven requests: 4,221 of them, more than a planner has shared memory for."""
LISTED: Final = 299
"""Of seven requests: 2,093 of them, two parts of up to 2,048 queries whose gradients of one cache
are added up."""
GRID: Final = 218
"""Heads of which 301 entries have more than an axis of a grid has programs: 65,535."""
PAGES: Final = 65600
"""Of a pool: more than 16 bits."""
BYTES: Final = 1 << 26
"""A pool that is larger has fewer pages."""
_BY_ENTRY: Final[Mapping[str, int]] = dict.fromkeys(
    ("q", "k", "v", "o", "lse", "dq", "dk", "dv", "do", "dlse", "block_table", "cache_seqlens",
     "indices", "topk_length"), 0
)  # fmt: skip
_BY_HEAD: Final[Mapping[str, int]] = {
    **dict.fromkeys(("q", "k", "v", "o", "dq", "dk", "dv", "do"), 2), "lse": 1, "dlse": 1,
    "sink": 0, "dsink": 0,
}  # fmt: skip
_BY_ROW: Final[Mapping[str, int]] = {
    **dict.fromkeys(("q", "k", "v", "o", "dq", "dk", "dv", "do"), 1), "lse": 2, "dlse": 2,
}  # fmt: skip
_PACK: Final[dict[str, Any]] = {
    "q_lengths": (3, 1, 0, 4, 2, 5, 1), "k_lengths": (5, 2, 3, 7, 4, 5, 1), "s_q": 16, "s_k": 27,
    "B": 1, "d_k": 16, "d_v": 8,
}  # fmt: skip


def _packed(problem: Any, count: int) -> Mapping[str, Any]:
    return {
        "q_lengths": problem.q_lengths * count,
        "k_lengths": problem.k_lengths * count,
        "s_q": problem.s_q * count,
        "s_k": problem.s_k * count,
    }


def _heads(problem: Any, count: int) -> Mapping[str, Any]:
    return {name: getattr(problem, name) * count for name in ("H", "h_kv")}


def of_dense() -> tuple[ManyCopies, ...]:
    """Entries of a batch, sequences of a pack, heads: of 8,192 elements in a row of o."""
    entries = {"B": 7, "s_q": 3, "s_k": 5, "q_lengths": None, "k_lengths": None}
    heads = {**entries, "B": 1, "H": 14, "h_kv": 7, "d_k": 16, "d_v": 8}
    grid = {**entries, "s_q": 1, "s_k": 2, "H": GRID, "h_kv": GRID // 2, "d_k": 16, "d_v": 8}
    return (
        ManyCopies("entries", entries, lambda x, n: {"B": x.B * n}, _BY_ENTRY, MANY),
        ManyCopies(
            "heads of entries", grid, lambda x, n: {"B": x.B * n}, _BY_ENTRY, MANY, native=True
        ),
        ManyCopies("sequences of a pack", _PACK, _packed, _BY_ROW, SCANNED, packed=True),
        ManyCopies("heads", heads, _heads, _BY_HEAD, 80),
    )


def _with_pool(small: MlaDecodeCall, whole: MlaDecodeCall) -> MlaDecodeCall:
    """Every copy of the requests has pages in a copy of the pool, the last one in the last."""
    cache, own = small.cache, len(small.cache)
    most = BYTES // max(cache.numel() * cache.element_size(), 1)
    pools = max(1, min(-(-PAGES // own), most))
    count = len(whole.block_table) // len(small.block_table)
    pool = torch.arange(count) * (pools - 1) // max(count - 1, 1)
    used = small.block_table < own
    tables = [torch.where(used, small.block_table + own * int(n), small.block_table) for n in pool]
    table = torch.cat(tables).to(small.block_table.dtype)
    return replace(whole, cache=cache.repeat(pools, 1, 1, 1), block_table=table)


def of_decode() -> tuple[ManyCopies, ...]:
    """Requests, the first and the last one of the greatest length."""
    base = {"k_lengths": (33, 5, 9, 0, 20, 2, 33), "s_q": 1, "page": 2}

    def sizes(small: Any, count: int) -> Mapping[str, Any]:
        return {"k_lengths": small.k_lengths * count}

    return (ManyCopies("requests", base, sizes, _BY_ENTRY, PLANNED, joined=_with_pool),)


def of_lists() -> tuple[ManyCopies, ...]:
    """Requests that list slots of one cache."""
    base = {"B": 7, "s_q": 1, "H": 2, "pages": 2, "page": 4, "topk": 5, "topk_lengths": None}

    def sizes(small: Any, count: int) -> Mapping[str, Any]:
        return {"B": small.B * count}

    return (ManyCopies("requests", base, sizes, _BY_ENTRY, LISTED, native=True),)


def of_merges() -> tuple[ManyCopies, ...]:
    """Rows, and heads of 8,192 elements in a row."""
    tensors = ("o_a", "o_b", "o")
    lse = ("lse_a", "lse_b", "lse")
    return (
        ManyCopies(
            "rows", {"T": 7, "H": 2}, lambda x, n: {"T": x.T * n},
            {**dict.fromkeys(tensors, 0), **dict.fromkeys(lse, 1)}, 1200,
        ),
        ManyCopies(
            "heads", {"T": 3, "H": 7}, lambda x, n: {"H": x.H * n},
            {**dict.fromkeys(tensors, 1), **dict.fromkeys(lse, 0)}, 160,
        ),
    )  # fmt: skip
