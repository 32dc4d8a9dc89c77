"""The fixed problems of attention, each named for what it exposes, and the random ones.

Heads, queries and requests differ in number: swapped axes never fit. In `special_sizes` they do.
"""

from __future__ import annotations

from typing import Any, Final, get_args

from hypothesis import strategies as st

from kdaverify.operators.attention import special_sizes
from kdaverify.operators.attention.merge_problem import MergeProblem, Parts
from kdaverify.operators.attention.problem import AttentionProblem, MlaDecodeProblem, Table
from kdaverify.operators.attention.regimes import REGIMES, VALUES, in_range, usual
from kdaverify.operators.attention.sinks import Sinks
from kdaverify.operators.sizes import Fields, panel_of

WIDE: Final[dict[str, Any]] = {"H": 5, "d_k": 24, "d_v": 16}
REGIME_SIZES: Final[dict[str, Any]] = {"B": 2, "s_q": 3, "s_k": 131, "H": 4, "h_kv": 2}
DENSE: Final[Fields] = {
    "one-key": {"B": 2, "s_q": 3, "s_k": 1, **WIDE},
    "two-keys": {"B": 2, "s_q": 1, "s_k": 2, **WIDE},
    # kernels may go without a maximum where keys are few
    "three-high-keys": {"B": 2, "s_q": 2, "s_k": 3, "logits": "high", **WIDE},
    "tile-less-one": {"s_q": 3, "s_k": 63, "causal": True, **WIDE},
    "tile": {"B": 3, "s_q": 64, "s_k": 64, "causal": True, "H": 2},
    "tile-plus-one": {"B": 2, "s_q": 65, "s_k": 65, "causal": True, "H": 3},
    "two-tiles": {"s_q": 4, "s_k": 127, "H": 9, "h_kv": 3, "d_k": 40, "d_v": 24},
    "two-tiles-plus-one": {"s_q": 2, "s_k": 129, "H": 6, "h_kv": 3, "scale": "model"},
    "more-queries": {"B": 2, "s_q": 37, "s_k": 20, "causal": True, "H": 3},
    "more-queries-all-keys": {"B": 2, "s_q": 21, "s_k": 3, **WIDE},
    "fewer-queries": {"B": 2, "s_q": 17, "s_k": 100, "causal": True, "H": 6, "h_kv": 2},
    "small-scale": {"B": 2, "s_q": 5, "s_k": 70, "scale": "small", **WIDE},
    "as-wide-values": {"B": 2, "s_q": 9, "s_k": 33, "H": 3, "d_k": 16, "d_v": 16},
    "wider-values": {"B": 2, "s_q": 3, "s_k": 33, "H": 5, "d_k": 16, "d_v": 40},
    "model-width": {"s_q": 2, "s_k": 66, "H": 3, "d_k": 192, "d_v": 128, "scale": "model"},
    "pack": {"q_lengths": (3, 0, 17, 1, 5), "k_lengths": (20, 4, 17, 65, 0), "s_q": 26, "s_k": 106,
             "H": 4, "h_kv": 2, "causal": True},
    "pack-with-rows-of-nobody": {"q_lengths": (2, 9), "k_lengths": (70, 3), "s_q": 14, "s_k": 80,
                                 "H": 6, "causal": True, "scale": "model"},
    "pack-model-width": {"q_lengths": (1, 3), "k_lengths": (5, 66), "s_q": 4, "s_k": 71, "H": 3,
                         "d_k": 192, "d_v": 128, "causal": True, "scale": "model"},
    # as many rows of queries as of keys, cut elsewhere: one list of offsets taken for both
    "pack-equal-rows": {"q_lengths": (2, 9, 4), "k_lengths": (7, 3, 5), "s_q": 15, "s_k": 15,
                        "H": 2},
    # dk and dv of keys that no query sees came from memory that nothing was written to
    "pack-all-keys": {"q_lengths": (1, 0, 4, 2), "k_lengths": (64, 5, 0, 129), "s_q": 7,
                      "s_k": 198, "H": 5},
    # sizes that models have: past tiles of rows, of heads and of columns, buffers and grids
    "keys-past-4096": {"s_q": 2, "s_k": 4200, "H": 1, "d_k": 16, "d_v": 8},
    # an accumulator that left the registers after every 8,192 keys went through bf16
    "keys-past-16384": {"s_q": 3, "s_k": 16484, "H": 1, "d_k": 16, "d_v": 8},
    # dq was rounded after every 1,024 keys: of ordinary rows that is no larger than other roundings
    "sums-that-cancel": {"s_q": 2, "s_k": 4200, "H": 2, "d_k": 16, "d_v": 8, "logits": "heads",
                         "value": "halves"},
    # positions are exact up to 256 in bf16 and up to 2048 in fp16
    "positions-past-256": {"s_q": 270, "s_k": 270, "H": 1, "d_k": 16, "d_v": 8, "causal": True},
    # the route of decode, whose heads are in another order
    "few-queries-past-2048": {"s_q": 5, "s_k": 2103, "H": 4, "h_kv": 2, "d_k": 16, "d_v": 8,
                              "causal": True},
    "rows-past-128": {"s_q": 150, "s_k": 150, "H": 2, "d_k": 16, "d_v": 8, "causal": True},
    "heads-past-64": {"s_q": 2, "s_k": 20, "H": 66, "h_kv": 33, "d_k": 16, "d_v": 8,
                      "sink": "mixed"},
    "entries-past-32": {"B": 40, "s_q": 1, "s_k": 9, "H": 2, "d_k": 16, "d_v": 8},
    "pack-past-32": {"q_lengths": (1, 2) * 18, "k_lengths": (2, 7) * 18, "s_q": 55, "s_k": 162,
                     "H": 2, "d_k": 16, "d_v": 8, "causal": True},
    "widths-past-128": {"s_q": 2, "s_k": 66, "H": 2, "d_k": 136, "d_v": 264},
    # a backward for this width alone left out the sink
    "model-width-sink": {"B": 2, "s_q": 5, "s_k": 70, "H": 3, "d_k": 192, "d_v": 128,
                         "causal": True, "scale": "model", "sink": "level"},
    "square-width-sink": {"s_q": 66, "s_k": 66, "H": 8, "d_k": 64, "d_v": 64, "causal": True,
                          "sink": "mixed"},
    **{f"{name}-logits": {**REGIME_SIZES, "logits": name} for name in REGIMES if name != "normal"},
    # a block of keys that are skipped weighs little: it takes many of them
    "plateau-logits": {"s_q": 2, "s_k": 2050, "H": 4, "h_kv": 2, "d_k": 16, "d_v": 8,
                       "logits": "plateau", "value": "beside"},
    # maxima that lag by less than they may, block after block
    "hill-logits": {"s_q": 2, "s_k": 4600, "H": 2, "h_kv": 1, "d_k": 16, "d_v": 8,
                    "logits": "hill"},
    # 8 rows see no key of the last tile of 64: the maximum of none, 0, stayed above all logits
    **{
        f"{name}-causal": {**REGIME_SIZES, "s_q": 75, "logits": name, "causal": True}
        for name in ("rising", "last", "high", "low", "sharp")
    },
    # a key of zeros was taken for padding, and masked
    "special-logits": {"B": 2, "s_q": 5, "s_k": 131, "H": 6, "h_kv": 3, "logits": "special",
                       "value": "special"},
    **{
        f"{name}-values": {**REGIME_SIZES, "value": name}
        for name in VALUES
        if name not in ("normal", "special")
    },
    # do went through fp16 under one power of two: the gradients of quiet heads and tokens were 0
    "uneven-loss": {"B": 2, "s_q": 21, "s_k": 21, "H": 6, "h_kv": 3, "causal": True,
                    "loss": "uneven"},
    **{
        f"{name}-sink": {**REGIME_SIZES, "sink": name}
        for name in ("level", "high", "absent", "faint")
    },
    "one-query-sink": {"B": 2, "s_q": 1, "s_k": 70, "H": 6, "h_kv": 2, "sink": "level"},
    "mixed-sinks": {"B": 2, "s_q": 37, "s_k": 20, "H": 7, "causal": True, "sink": "mixed"},
    "peaked-logits-sink": {**REGIME_SIZES, "logits": "peaked", "sink": "level"},
    "pack-sink": {"q_lengths": (3, 0, 17, 1, 5), "k_lengths": (20, 4, 17, 65, 0), "s_q": 26,
                  "s_k": 106, "H": 4, "h_kv": 2, "causal": True, "sink": "level"},
    **special_sizes.DENSE,
}  # fmt: skip
LATENT: Final[dict[str, Any]] = {"H": 6, "d_k": 24, "d_v": 16}
MIXED: Final = (5, 0, 131, 64)
DECODE: Final[Fields] = {
    "one-token": {"k_lengths": (1, 1), "s_q": 1, **LATENT},
    "two-tokens": {"k_lengths": (2, 1, 3), "s_q": 2, **LATENT},
    "page-edges": {"k_lengths": (15, 16, 17, 31, 33), "s_q": 1, **LATENT},
    "tile-edges": {"k_lengths": (63, 64, 65, 1), "s_q": 2, "page": 64, **LATENT},
    "two-tile-edges": {"k_lengths": (127, 128, 129), "s_q": 1, "page": 32, **LATENT},
    # a second pair of blocks of 64 is rescaled by the first pair's factors
    "two-pairs-of-tiles": {"k_lengths": (260, 193), "s_q": 2, "page": 64, **LATENT},
    "mixed-with-empty": {"k_lengths": MIXED, "s_q": 3, **LATENT},
    "all-empty": {"k_lengths": (0, 0, 0), "s_q": 2, **LATENT},
    "all-keys": {"k_lengths": MIXED, "s_q": 3, "causal": False, **LATENT},
    "more-queries": {"k_lengths": (2, 40, 3), "s_q": 4, **LATENT},
    "two-key-heads": {"k_lengths": (70, 19), "s_q": 3, "H": 6, "h_kv": 2, "d_k": 24, "d_v": 16},
    "three-key-heads": {"k_lengths": (21, 3), "s_q": 1, "H": 9, "h_kv": 3, "d_k": 24, "d_v": 8},
    "identity-table": {"k_lengths": (40, 70), "s_q": 3, "table": "identity", **LATENT},
    "reversed-table": {"k_lengths": (40, 70), "s_q": 1, "table": "reversed", **LATENT},
    "shared-pages": {"k_lengths": (70, 40, 70, 9), "s_q": 2, "table": "shared", **LATENT},
    "page-of-one": {"k_lengths": (17, 0, 5), "s_q": 2, "page": 1, **LATENT},
    "page-of-128": {"k_lengths": (130, 7), "s_q": 3, "page": 128, **LATENT},
    # pages of several tiles and a rest: a kernel that rounded tiles of a page down was accepted.
    # Engines that share pages with a recurrent state have multiples of 16, such as 528.
    "pages-of-24": {"k_lengths": (100, 7, 49), "s_q": 2, "page": 24, **LATENT},
    "pages-of-176": {"k_lengths": (360, 175), "s_q": 1, "page": 176, **LATENT},
    "model-scale": {"k_lengths": (70, 19), "s_q": 3, "scale": "model", **LATENT},
    "small-scale": {"k_lengths": (70, 19), "s_q": 1, "scale": "small", **LATENT},
    "many-heads": {"k_lengths": (65, 3), "s_q": 3, "H": 65, "d_k": 24, "d_v": 16, "sink": "mixed"},
    "model-width": {"k_lengths": (66, 2), "s_q": 1, "H": 3, "d_k": 576, "d_v": 512},
    "model-width-sink": {
        "k_lengths": (66, 0, 2),
        "s_q": 2,
        "H": 3,
        "d_k": 576,
        "d_v": 512,
        "sink": "level",
    },
    "tokens-past-4096": {"k_lengths": (4200, 1030), "s_q": 1, **LATENT},
    # three parts of 4,096: a merge by pairs dropped the odd one
    "tokens-past-8192": {"k_lengths": (9000, 70), "s_q": 1, "page": 64, **LATENT},
    **{
        f"{name}-logits": {"k_lengths": (131, 20, 64), "s_q": 2, "logits": name, **LATENT}
        for name in REGIMES
        if name != "normal"
    },
    "plateau-logits": {"k_lengths": (2050, 64), "s_q": 1, "logits": "plateau", **LATENT},
    "hill-logits": {"k_lengths": (4600, 64), "s_q": 1, "logits": "hill", **LATENT},
    # the first queries see no key of the last tile
    "low-drafts": {"k_lengths": (129, 65, 20), "s_q": 3, "logits": "low", **LATENT},
    # a sink joins the sum otherwise where a request has one query
    "one-token-sink": {"k_lengths": (70, 0, 33, 1), "s_q": 1, "sink": "level", **LATENT},
    **{
        f"{name}-sink": {"k_lengths": MIXED, "s_q": 3, "sink": name, **LATENT}
        for name in ("level", "high", "absent", "mixed")
    },
    "peaked-logits-sink": {
        "k_lengths": (131, 20),
        "s_q": 2,
        "logits": "peaked",
        "sink": "level",
        **LATENT,
    },
    **special_sizes.DECODE,
}
MERGES: Final[Fields] = {
    name: {"T": 7, "H": 3, "d_v": 24, "parts": name} for name in get_args(Parts)
} | {
    "one-row": {"T": 1, "H": 2, "d_v": 8, "parts": "normal"},
    "model-width": {"T": 3, "H": 5, "d_v": 512, "parts": "one-empty"},
    "many-rows": {"T": 2100, "H": 2, "d_v": 17, "parts": "empty"},
    "many-heads": {"T": 5, "H": 130, "d_v": 9, "parts": "normal"},
    **special_sizes.MERGES,
}
LONGER_DENSE: Final[Fields] = {
    "long": {"s_q": 2, "s_k": 4097, "H": 3, "d_k": 32, "d_v": 16},
    "prefill": {"s_q": 257, "s_k": 511, "H": 4, "h_kv": 2, "causal": True, "d_k": 64},
}
LONGER_DECODE: Final[Fields] = {
    "long": {"k_lengths": (4097, 0, 255), "s_q": 2, "page": 64, **LATENT},
    "long-model-width": {"k_lengths": (1030, 70), "s_q": 3, "H": 16, "d_k": 576, "d_v": 512},
}
"""In acceptance and nightly too."""


def dense_problems(dtype: str, profile: str) -> dict[str, AttentionProblem]:
    return in_range(panel_of(AttentionProblem, dtype, profile, DENSE, LONGER_DENSE), dtype)


def decode_problems(dtype: str, profile: str) -> dict[str, MlaDecodeProblem]:
    return in_range(panel_of(MlaDecodeProblem, dtype, profile, DECODE, LONGER_DECODE), dtype)


def merge_problems(dtype: str, profile: str) -> dict[str, MergeProblem]:
    return panel_of(MergeProblem, dtype, profile, MERGES, {})


HEADS: Final = ((1, 1), (4, 2), (3, 1), (6, 3), (5, 1), (9, 3), (8, 8))
WIDTHS: Final = ((8, 4), (16, 8), (24, 16), (40, 24), (72, 64))
LENGTHS: Final = st.one_of(st.integers(0, 9), st.sampled_from((15, 16, 17, 63, 64, 65, 127, 129)))


def _fields(draw: st.DrawFn, dtype: str) -> dict[str, Any]:
    """What random problems of both kinds have in common."""
    (H, h_kv), (d_k, d_v) = draw(st.sampled_from(HEADS)), draw(st.sampled_from(WIDTHS))
    return {
        "dtype": dtype,
        "seed": draw(st.integers(0, 2**31 - 1)),
        "H": H,
        "h_kv": h_kv,
        "d_k": d_k,
        "d_v": d_v,
        "scale": draw(st.sampled_from(("default", "model", "small"))),
        "logits": draw(st.sampled_from(usual(dtype))),
        "sink": draw(st.sampled_from((None, *get_args(Sinks)))),
    }


@st.composite
def random_dense(draw: st.DrawFn, dtype: str) -> AttentionProblem:
    """Batches and packs, which shrink to one query and one key."""
    own = {"causal": draw(st.booleans()), "value": draw(st.sampled_from([*VALUES]))}
    fields: dict[str, Any] = _fields(draw, dtype) | own
    if draw(st.booleans()):
        pairs = draw(st.lists(st.tuples(st.integers(0, 20), LENGTHS), min_size=1, max_size=5))
        q, k = (tuple(pair[n] for pair in pairs) for n in range(2))
        spare = draw(st.integers(0, 3))
        sizes: dict[str, Any] = {"s_q": max(sum(q) + spare, 1), "s_k": max(sum(k) + spare, 1)}
        return AttentionProblem(q_lengths=q, k_lengths=k, **sizes, **fields)
    return AttentionProblem(
        B=draw(st.integers(1, 3)),
        s_q=draw(st.one_of(st.integers(1, 5), st.integers(1, 70))),
        s_k=max(draw(LENGTHS), 1),
        **fields,
    )


@st.composite
def random_decode(draw: st.DrawFn, dtype: str) -> MlaDecodeProblem:
    """Batches of any lengths, which shrink to one cached token."""
    return MlaDecodeProblem(
        k_lengths=tuple(draw(st.lists(LENGTHS, min_size=1, max_size=5))),
        s_q=draw(st.integers(1, 4)),
        page=draw(st.sampled_from((16, 1, 32, 64))),
        table=draw(st.sampled_from(get_args(Table))),
        causal=draw(st.booleans()),
        **_fields(draw, dtype),
    )


@st.composite
def random_merges(draw: st.DrawFn, dtype: str) -> MergeProblem:
    return MergeProblem(
        dtype=dtype,  # pyright: ignore[reportArgumentType]
        seed=draw(st.integers(0, 2**31 - 1)),
        T=draw(st.one_of(st.integers(1, 9), st.integers(1, 70))),
        H=draw(st.sampled_from((1, 2, 3, 8))),
        d_v=draw(st.sampled_from((4, 8, 16, 24, 65))),
        parts=draw(st.sampled_from(get_args(Parts))),
    )
