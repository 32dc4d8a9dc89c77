"""The fixed problems of attention over lists of slots, and the random ones."""

from __future__ import annotations

from typing import Any, Final, get_args

from hypothesis import strategies as st

from kdaverify.operators.attention import special_sizes
from kdaverify.operators.attention.lists import PATTERNS
from kdaverify.operators.attention.panel import HEADS, WIDTHS
from kdaverify.operators.attention.regimes import REGIMES, in_range, usual
from kdaverify.operators.attention.sinks import Sinks
from kdaverify.operators.attention.sparse_problem import SparseProblem
from kdaverify.operators.sizes import Fields, panel_of

WIDE: Final[dict[str, Any]] = {"B": 2, "s_q": 3, "H": 5, "d_k": 24, "d_v": 16}
FEW: Final[dict[str, Any]] = {**WIDE, "pages": 9, "topk": 131}
MODEL: Final[dict[str, Any]] = {"H": 3, "d_k": 576, "d_v": 512, "pages": 6, "topk": 70}
QUANTISED: Final[dict[str, Any]] = {
    "cache": "fp8", "B": 2, "s_q": 3, "H": 5, "d_k": 264, "d_v": 256, "pages": 6, "topk": 70,
}  # fmt: skip
LISTS: Final[Fields] = {
    "one-entry": {**WIDE, "topk": 1},
    "tile-less-one": {**WIDE, "topk": 63, "pages": 5},
    "tile": {**WIDE, "topk": 64, "pages": 5, "B": 3, "s_q": 2},
    "tile-plus-one": {**WIDE, "topk": 65, "pages": 5},
    # that no query names anything is a case without evidence: outputs are 0 whatever a kernel does
    **{f"{name}-list": {**FEW, "lists": name} for name in PATTERNS if name != "none"},
    "repeated-list": {**WIDE, "B": 1, "s_q": 2, "pages": 25, "topk": 300, "lists": "repeated"},
    "more-entries-than-slots": {**WIDE, "topk": 90, "lists": "sorted", "h_kv": 5},
    # a bound by slots drops what the entries behind it add to dcache
    "repeats-past-the-slots": {**WIDE, "pages": 3, "topk": 131, "lists": "duplicates"},
    "lengths": {**FEW, "B": 5, "s_q": 2, "topk_lengths": (0, 1, 64, 65, 131)},
    "lengths-and-holes": {**FEW, "B": 3, "lists": "holes", "topk_lengths": (66, 131, 5)},
    "slots-that-are-none": {**FEW, "lists": "holes", "invalid": "outside"},
    "small-pages": {**FEW, "pages": 150, "page": 1, "scale": "small"},
    "large-pages": {**FEW, "pages": 3, "page": 64, "scale": "model"},
    "pages-of-24": {**FEW, "pages": 6, "page": 24},
    "key-heads": {**FEW, "H": 6, "h_kv": 2, "lists": "holes"},
    "many-heads": {**FEW, "B": 1, "H": 65, "sink": "mixed"},
    "entries-past-2048": {**WIDE, "B": 1, "s_q": 2, "pages": 135, "topk": 2100, "lists": "holes"},
    "model-width": {**MODEL, "B": 2, "s_q": 1, "lists": "holes", "scale": "model"},
    # heads past a block of 16, whose dsink padded blocks drop
    "model-width-sink": {
        **MODEL,
        "H": 20,
        "s_q": 2,
        "lists": "empty",
        "scale": "model",
        "sink": "level",
    },
    **{
        f"{name}-logits": {**FEW, "logits": name, "lists": "holes"}
        for name in REGIMES
        if name != "normal"
    },
    # tiles that name no key, before some and behind them
    **{f"low-{name}": {**FEW, "logits": "low", "lists": name} for name in ("leading", "tail")},
    "hill-logits": {**WIDE, "B": 1, "s_q": 1, "pages": 290, "topk": 4600, "logits": "hill"},
    "uneven-loss": {**WIDE, "pages": 5, "topk": 65, "loss": "uneven"},
    "plateau-logits": {**WIDE, "B": 1, "s_q": 1, "pages": 150, "topk": 2050, "logits": "plateau"},
    "one-query-sink": {**FEW, "s_q": 1, "sink": "level"},
    **{
        f"{name}-sink": {**FEW, "sink": name, "lists": "empty"}
        for name in ("level", "high", "absent", "mixed", "faint")
    },
    "peaked-logits-sink": {**FEW, "logits": "peaked", "sink": "level", "lists": "holes"},
    "quantised": QUANTISED,
    "quantised-sink": {**QUANTISED, "sink": "level", "lists": "empty"},
    "quantised-scales": {**QUANTISED, "scales": "any"},
    "quantised-subnormal": {**QUANTISED, "scales": "any", "codes": "subnormal"},
    "quantised-holes": {**QUANTISED, "scales": "any", "lists": "leading", "scale": "model"},
    "quantised-special": {
        **QUANTISED,
        "s_q": 1,
        "H": 2,
        "logits": "special",
        "lists": "duplicates",
    },
    "quantised-peaked": {**QUANTISED, "logits": "peaked", "lists": "duplicates"},
    "quantised-model-width": {**MODEL, "cache": "fp8", "scales": "any", "lists": "empty", "s_q": 2},
    **special_sizes.LISTS,
}
LONGER: Final[Fields] = {
    "long": {**WIDE, "pages": 33, "page": 64, "topk": 2048, "lists": "holes"},
    "long-model-width": {**MODEL, "H": 16, "pages": 20, "page": 64, "topk": 1030, "s_q": 2},
    "quantised-long": {
        **QUANTISED,
        "d_k": 576,
        "d_v": 512,
        "H": 16,
        "pages": 33,
        "page": 64,
        "topk": 2048,
        "scales": "any",
    },
}
"""In acceptance and nightly too."""


def sparse_problems(dtype: str, profile: str) -> dict[str, SparseProblem]:
    return in_range(panel_of(SparseProblem, dtype, profile, LISTS, LONGER), dtype)


@st.composite
def random_sparse(draw: st.DrawFn, dtype: str) -> SparseProblem:
    """Batches of any lists, which shrink to one of one entry."""
    (H, h_kv), (d_k, d_v) = draw(st.sampled_from(HEADS)), draw(st.sampled_from(WIDTHS))
    B, topk = draw(st.integers(1, 3)), draw(st.one_of(st.integers(1, 9), st.integers(1, 140)))
    lengths = st.tuples(*[st.integers(0, topk)] * B)
    fields: dict[str, Any] = {
        "dtype": dtype,
        "seed": draw(st.integers(0, 2**31 - 1)),
        "s_q": draw(st.integers(1, 3)),
        "page": draw(st.sampled_from((16, 3, 32, 64))),
        "pages": draw(st.integers(1, 6)),
        "lists": draw(st.sampled_from([*PATTERNS])),
        "topk_lengths": draw(st.one_of(st.none(), lengths)),
        "scale": draw(st.sampled_from(("default", "model", "small"))),
        "logits": draw(st.sampled_from(usual(dtype))),
        "scales": draw(st.sampled_from(("powers", "any"))),
        "sink": draw(st.sampled_from((None, *get_args(Sinks)))),
    }
    return SparseProblem(B=B, topk=topk, H=H, h_kv=h_kv, d_k=d_k, d_v=d_v, **fields)
