"""Panel problems whose sizes are equal, 1 or a tile apart, of many requests, no multiple of a tile,
or which share pages: they choose paths.

All other problems keep sizes apart, so that swapped axes never fit. A kernel that transposes LSE
where its first axis has T elements is wrong only where T = H: it was accepted. In `all-equal` every
axis that can be is equal; an error that is the same in all of them is hidden there, and shows in
the problems of pairs. `tests/attention/test_special_sizes.py` counts the pairs.
"""

from __future__ import annotations

from typing import Any, Final

from kdaverify.operators.sizes import Fields

_SMALL: Final[dict[str, Any]] = {"d_k": 16, "d_v": 8}
_APART: Final[dict[str, Any]] = {"H": 2, **_SMALL, "sink": "level"}
"""More than a tile of 64 or 128 of the one, less than a tile of the other: dsink was summed over as
many tiles of queries as there are tiles of keys."""
_LONG: Final[dict[str, Any]] = {"H": 2, "h_kv": 1, "d_k": 8, "d_v": 4, "sink": "level"}
_FEW: Final[dict[str, Any]] = {"H": 2, "d_k": 6, "d_v": 4, "s_q": 1}
"""Of many requests, or of as many rows as no axis of a grid has programs: 65,535."""
_DRAFTS: Final[dict[str, Any]] = {**_FEW, "s_q": 19, "page": 4}
_SHUFFLED: Final = (2, 7, 1, 5, 3, 6, 0, 4, 7, 2)
"""Cached tokens of requests: several pages of 2, the last one full or not. Requests from the 32nd
on had one page each: a schedule was accepted that summed pages over the lanes of a warp."""
_CROWD: Final = (300, 290, 330, 310, 295, 340, 320, 325, 300)
_TILES: Final = (2, 3, 1, 130, 2)
"""Rows of sequences, one in five of several tiles."""
_PAGED: Final[dict[str, Any]] = {"H": 6, "d_k": 24, "d_v": 16}
_ROWS: Final[dict[str, Any]] = {"s_q": 9, "s_k": 70, "H": 2, "h_kv": 1, "causal": True}
_WIDTHS: Final = (
    (72, 72), (80, 80), (96, 96), (104, 104), (112, 112), (128, 96), (144, 144), (160, 160),
    (192, 80),
)  # fmt: skip
"""d_k and d_v of heads as models have them. Kernels pad heads to 16, 32 or 64 columns, and have
tiles, atoms of stores and accumulators of their own for each width. FlashAttention's dv was wrong
where d_k is 128 and d_v is 96, its dq where d_k is 72, 80, 104 or 112: no other problem has such
widths, and a port with the former was accepted. Of 16 columns 72 and 104 are no multiple, of 32
also 80, 112 and 144; d_v is a multiple of d_k nowhere else than where they are equal."""
DENSE: Final[Fields] = {
    "all-equal": {"B": 4, "s_q": 4, "s_k": 4, "H": 4, "h_kv": 4, "d_k": 4, "d_v": 4, "causal": True,
                  "sink": "mixed"},
    "entries-as-queries": {"B": 4, "s_q": 4, "H": 4, "s_k": 2, "h_kv": 2, "d_k": 2, "d_v": 2},
    "keys-as-columns": {"B": 4, "s_q": 4, "s_k": 4, "d_k": 4, "H": 3, "h_kv": 3, "d_v": 3,
                        "causal": True, "sink": "level"},
    "heads-as-keys": {"H": 4, "s_k": 4, "d_k": 4, "B": 2, "s_q": 2, "h_kv": 2, "d_v": 2,
                      "causal": True, "sink": "level"},
    # a single key was read without its mask
    "one-key-causal": {"B": 2, "s_q": 3, "s_k": 1, "H": 5, "causal": True, "sink": "level"},
    "one-query-causal": {"B": 2, "s_q": 1, "s_k": 9, "H": 6, "h_kv": 2, "causal": True,
                         "sink": "mixed"},
    "one-head-one-column": {"B": 2, "s_q": 5, "s_k": 7, "H": 1, "d_v": 1, "causal": True,
                            "sink": "level"},
    "all-ones": {"H": 1, "d_k": 2, "d_v": 1, "causal": True, "sink": "level"},
    "pack-of-one": {"q_lengths": (5,), "k_lengths": (9,), "s_q": 7, "s_k": 12, "H": 1, "d_v": 1,
                    "causal": True, "sink": "level"},
    "pack-of-ones": {"q_lengths": (1, 3, 1, 2), "k_lengths": (1, 1, 4, 2), "s_q": 7, "s_k": 8,
                     "H": 4, "h_kv": 2, "causal": True, "sink": "level"},
    # a border was that of squares where the longest are equal, or all together are
    "pack-equal-maxima": {"q_lengths": (9, 2, 4), "k_lengths": (9, 5, 3), "s_q": 15, "s_k": 17,
                          "H": 3, "causal": True},
    "pack-equal-sums": {"q_lengths": (9, 2, 4), "k_lengths": (9, 4, 2), "s_q": 15, "s_k": 15,
                        "H": 4, "causal": True, "sink": "level"},
    "queries-past-keys": {"s_q": 130, "s_k": 20, **_APART},
    "queries-past-keys-causal": {"s_q": 130, "s_k": 20, "causal": True, **_APART},
    "keys-past-queries": {"s_q": 20, "s_k": 130, **_APART},
    "keys-past-queries-causal": {"s_q": 20, "s_k": 130, "causal": True, **_APART},
    # one key of logit 0, or a block of it, has an LSE of 0, as memory that nothing was written to
    "one-zero-key": {"B": 2, "s_q": 3, "s_k": 1, "H": 4, "logits": "zero"},
    "blocks-and-one-zero-key": {"B": 2, "s_q": 2, "s_k": 129, "H": 4, "logits": "zero"},
    # wide rows, for which kernels have other accumulators, and many tiles: of keys, of queries
    "wide-rows-past-1024": {"s_q": 2, "s_k": 1100, "H": 1, "d_k": 136, "d_v": 264},
    "columns-256-past-1024": {"s_q": 2, "s_k": 1100, "H": 1, "d_k": 256, "d_v": 256},
    "odd-columns-past-1024": {"s_q": 2, "s_k": 1100, "H": 1, "d_k": 257, "d_v": 129},
    "wide-queries-past-1024": {"s_q": 1100, "s_k": 3, "H": 1, "d_k": 136, "d_v": 136},
    "sequences-past-32": {"q_lengths": _TILES[:3] * 10 + _TILES, "s_q": 198,
                          "k_lengths": _TILES[:3] * 10 + _TILES, "s_k": 198,
                          "H": 1, "d_k": 8, "d_v": 4, "causal": True},
    # partial rows of long keys lie at the pitch of the longest queries
    "pack-of-keys-past-1024": {"q_lengths": (2, 5, 1), "k_lengths": (40, 1100, 9), "s_q": 8,
                               "s_k": 1149, "H": 1, "d_k": 16, "d_v": 8, "causal": True},
    # numbers that a byte takes for those of one sequence
    "empties-between": {"q_lengths": (3, *(0,) * 255, 4), "k_lengths": (5, *(0,) * 255, 6),
                        "s_q": 7, "s_k": 11, "H": 1, "d_k": 8, "d_v": 4},
    # a border by the longest lengths: dk and dv of later keys lacked their first queries
    "pack-of-borders-past-256": {"q_lengths": (3, 150), "k_lengths": (260, 80), "s_q": 153,
                                 "s_k": 340, "H": 1, "d_k": 8, "d_v": 4, "causal": True},
    # a border in the third segment of 2,048 queries, and one on both sides of a split of keys
    "queries-past-4096-causal": {"s_q": 4160, "s_k": 130, "causal": True, **_LONG},
    "border-across-splits": {"s_q": 40, "s_k": 4106, "causal": True, **_LONG},
    # one query beside others, whose sink was added to each split of its keys
    "pack-of-one-long-query": {"q_lengths": (3, 1, 2), "k_lengths": (40, 2100, 7), "s_q": 6,
                               "s_k": 2147, "causal": True, **_LONG},
    # exponentials that fp32 holds, and a sum of them that it does not
    "brink-of-keys": {"s_q": 3, "s_k": 700, "H": 2, "d_k": 8, "d_v": 4, "logits": "brink"},
    **{f"columns-{d_k}-{d_v}": {"d_k": d_k, "d_v": d_v, **_ROWS} for d_k, d_v in _WIDTHS},
}  # fmt: skip
DECODE: Final[Fields] = {
    "all-equal": {"k_lengths": (5, 5, 0, 0, 0), "s_q": 5, "H": 5, "h_kv": 5, "d_k": 5, "d_v": 4,
                  "page": 5, "sink": "mixed"},
    "requests-as-heads": {"k_lengths": (6, 3, 1, 5), "s_q": 4, "H": 4, "h_kv": 2, "d_k": 6,
                          "d_v": 4, "page": 2, "sink": "level"},
    "slots-as-heads": {"k_lengths": (4, 2), "s_q": 2, "H": 4, "h_kv": 2, "d_k": 4, "d_v": 2,
                       "page": 4, "sink": "level"},
    "pages-as-heads": {"k_lengths": (3, 1, 4), "s_q": 2, "H": 8, "h_kv": 8, "d_k": 8, "d_v": 3,
                       "page": 2},
    "width-as-page": {"k_lengths": (15, 4, 1, 0), "s_q": 4, "H": 3, "h_kv": 3, "d_k": 4, "d_v": 3,
                      "page": 4, "table": "reversed", "sink": "level"},
    "width-as-keys": {"k_lengths": (5, 3), "s_q": 1, "H": 5, "d_k": 8, "d_v": 5, "page": 1,
                      "table": "reversed"},
    "one-head": {"k_lengths": (1, 3), "s_q": 3, "H": 1, "d_k": 8, "d_v": 1, "sink": "level"},
    # a part of one key whose logit is 0
    "one-zero-key": {"k_lengths": (1, 65, 129, 0, 257), "s_q": 1, "logits": "zero", **_PAGED},
    # requests of as many pages, which have some of them in common: the first ones of a prefix that
    # is cached, others, or all of a request that was forked
    "leading-page": {"k_lengths": (70, 66, 70, 40), "s_q": 2, "table": "leading", **_PAGED},
    "leading-pages": {"k_lengths": (70, 66, 70, 75), "s_q": 1, "table": "half", **_PAGED},
    "middle-pages": {"k_lengths": (70, 66, 70, 75), "s_q": 2, "table": "middle", **_PAGED},
    "forked-pages": {"k_lengths": (70, 66, 70, 75), "s_q": 1, "table": "forks", **_PAGED},
    # a prefix of all that ends with the shortest, past what its first queries see
    "prefix-to-the-end": {"k_lengths": (48, 70, 48, 66), "s_q": 3, "table": "shared", **_PAGED},
    # a prefix of all read off the first request and the last, or the second
    "outer-pages": {"k_lengths": (70, 66, 75, 70), "s_q": 1, "table": "outer", **_PAGED},
    "paired-pages": {"k_lengths": (70, 75, 66, 70), "s_q": 2, "table": "pair", **_PAGED},
    # a prefix of those with one first page read off the first and the last of them
    "nested-pages": {"k_lengths": (70, 66, 75, 70), "s_q": 1, "table": "nested", **_PAGED},
    # the same of many requests, past several tiles: a cascade by the first and the last of them
    "outer-pages-past-256": {"k_lengths": _CROWD, "s_q": 1, "table": "outer", **_PAGED},
    # two to nine splits of 256 keys, of which the last has all weight: the odd one of a tree
    "last-split-wins": {"k_lengths": (300, 600, 900, 1100, 1400, 1700, 2000, 2300), "s_q": 1,
                        "logits": "last", "page": 64, **_PAGED},
    "brink-of-keys": {"k_lengths": (700, 3), "logits": "brink", "page": 64, **_FEW},
    "requests-past-32": {"k_lengths": _SHUFFLED * 7, "page": 2, **_FEW},
    "rows-past-65535": {"k_lengths": (1, 0, 2) * 43, "page": 1, "H": 128, "d_k": 3, "d_v": 2,
                        "s_q": 4},
    # drafts that are verified together: borders of more queries than registers hold
    "drafts-past-16": {"k_lengths": (40, 23, 12), **_DRAFTS},
    "model-width-past-1024": {"k_lengths": (1100, 1030), "s_q": 1, "H": 2, "d_k": 576, "d_v": 512},
}  # fmt: skip
MERGES: Final[Fields] = {
    "all-equal": {"T": 4, "H": 4, "d_v": 4, "parts": "one-empty"},
    "rows-as-heads": {"T": 4, "H": 4, "d_v": 8, "parts": "normal"},
    "rows-as-columns": {"T": 4, "H": 3, "d_v": 4, "parts": "normal"},
    "heads-as-columns": {"T": 3, "H": 4, "d_v": 4, "parts": "normal"},
    "all-ones": {"T": 1, "H": 1, "d_v": 1, "parts": "normal"},
    "rows-past-65535": {"T": 65539, "H": 1, "d_v": 2, "parts": "empty"},
    # a thread for 8 columns, 128 threads a block: heads straddle blocks
    "heads-across-blocks": {"T": 5, "H": 13, "d_v": 96, "parts": "normal"},
    # tiles whose every row has nearly all weight in one part
    "outweighed-tiles": {"T": 130, "H": 4, "d_v": 8, "parts": "outweighed"},
    # tiles of which one row has one part alone: decided for all by their mean
    "first-once-past-512": {"T": 600, "H": 8, "d_v": 8, "parts": "first-once"},
    "second-once-past-512": {"T": 600, "H": 8, "d_v": 8, "parts": "second-once"},
    "rows-of-heads-past-65535": {"T": 21847, "H": 3, "d_v": 2, "parts": "normal"},
}
LISTS: Final[Fields] = {
    "all-equal": {
        "B": 4, "s_q": 4, "H": 4, "h_kv": 4, "d_k": 4, "d_v": 3, "pages": 4, "page": 4, "topk": 4,
        "lists": "ends", "sink": "mixed", "topk_lengths": (4, 3, 1, 4),
    },
    "requests-as-entries": {
        "B": 4, "s_q": 4, "H": 4, "topk": 4, "d_v": 4, "h_kv": 2, "pages": 2, "page": 2, "d_k": 6,
        "lists": "ends",
    },
    "pages-as-entries": {
        "H": 6, "d_k": 6, "pages": 6, "topk": 6, "B": 3, "s_q": 3, "page": 3, "d_v": 3, "h_kv": 3,
        "sink": "level",
    },
    "pages-as-columns": {
        "B": 4, "d_k": 4, "page": 4, "H": 4, "h_kv": 4, "s_q": 3, "pages": 3, "topk": 3, "d_v": 3,
        "lists": "ends", "sink": "level",
    },
    "one-entry-sink": {
        "B": 2, "s_q": 1, "H": 1, "d_k": 8, "d_v": 1, "topk": 1, "lists": "ends", "sink": "level",
    },
    "one-zero-entry": {
        "B": 4, "s_q": 1, "pages": 20, "topk": 257, "topk_lengths": (1, 65, 129, 257),
        "logits": "zero", **_PAGED,
    },
    "brink-of-entries": {
        "B": 2, "pages": 12, "page": 64, "topk": 700, "logits": "brink", **_FEW,
    },
    "requests-past-32": {
        "B": 70, "pages": 12, "topk": 130, "topk_lengths": (65, 1, 130, 3, 0, 129, 70) * 10, **_FEW,
    },
    "rows-past-65535": {
        "s_q": 513, "H": 128, "d_k": 3, "d_v": 2, "pages": 2, "topk": 2, "lists": "holes",
    },
    "slots-past-65536": {
        "pages": 1100, "page": 64, "topk": 70, "lists": "ends", "d_k": 3, "d_v": 2,
    },
    "model-width-past-1024": {"H": 2, "d_k": 576, "d_v": 512, "pages": 80, "topk": 1100},
}  # fmt: skip
