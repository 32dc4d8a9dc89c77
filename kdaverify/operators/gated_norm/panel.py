"""The fixed problems of the gated RMSNorm, each named for what it exposes, and the random ones."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from kdaverify.operators.gated_norm.problem import REGIMES, GatedNormProblem
from kdaverify.operators.sizes import panel_of

PAST_16_BITS: Final = "past-16-bit-rows"
"""More rows than 16 bits count, and than an axis of a grid has programs."""
SMALL_SIGMOID: Final[dict[str, Any]] = {"activation": "sigmoid", "value": "small", "eps": 1e-5}
SIGMOID: Final[dict[str, Any]] = {"activation": "sigmoid"}
EQUAL: Final[dict[str, dict[str, Any]]] = {
    "equal-all": {"B": 4, "T": 4, "H": 4, "V": 4},
    "equal-batch-tokens": {"B": 3, "T": 3, "H": 5, "V": 5, **SIGMOID},
    "equal-batch-heads": {"B": 3, "T": 5, "H": 3, "V": 5},
    "equal-batch-columns": {"B": 5, "T": 3, "H": 3, "V": 5, **SIGMOID},
    "equal-three-axes": {"B": 2, "T": 3, "H": 6, "V": 6, "rank": 3},
    "equal-rows-heads": {"B": 2, "T": 3, "H": 6, "V": 4, "rank": 3},
    "equal-rows-columns": {"B": 2, "T": 3, "H": 4, "V": 6, "rank": 3, **SIGMOID},
    "equal-heads-columns": {"B": 2, "T": 3, "H": 4, "V": 4, "rank": 3},
    "square": {"T": 16, "V": 16, "rank": 2},
    "square-of-three-axes": {"T": 6, "H": 2, "V": 12, "rank": 3, **SIGMOID},
    "square-of-four-axes": {"B": 2, "T": 4, "H": 3, "V": 24},
    "square-tile": {"B": 2, "T": 16, "H": 4, "V": 128, "rank": 2},
}
"""All axes of a function that can have one size have it, then each pair of them beside other sizes:
code that recognises an axis by its size errs there, and where all are equal one error may undo
another. A mean without its axis is broadcast along columns of a square."""
MULTIPLES: Final[dict[str, dict[str, Any]]] = {
    "four-squares": {"T": 128, "V": 32, "rank": 2},
    "squares-of-three-axes": {"B": 2, "T": 32, "H": 3, "V": 12, "rank": 3, **SIGMOID},
    "sixteen-squares": {"B": 2, "T": 32, "H": 4, "V": 16},
    "a-square-and-a-row": {"T": 129, "V": 43, "rank": 2},
}
"""Rows that are a multiple of the width, more than a tile of them: a row of means then fits a tile
of V rows along either axis. A port that broadcast it along columns was accepted."""
ROWS: Final = 4100
"""More than a grid has programs: kernels take several short rows in a block."""
NARROW: Final[dict[str, dict[str, Any]]] = {
    "many-rows-of-7": {"T": ROWS, "V": 7, "rank": 2},
    "many-rows-of-12": {"T": ROWS, "V": 12, "rank": 2, **SIGMOID},
    "many-rows-of-16": {"B": 2, "T": ROWS // 4, "H": 2, "V": 16},
    "many-rows-of-32": {"T": ROWS // 4, "H": 4, "V": 32, "rank": 3},
}
"""Thousands of rows of few columns: a block of several rows has as many rows as columns at one of
these widths. A port that broadcast means along the columns of blocks of 16 by 16, from 1,024 rows
on, was accepted."""
PANEL: Final[dict[str, dict[str, Any]]] = {
    "one-row": {"T": 1, "V": 64},
    "one-column": {"T": 5, "V": 1},
    "odd": {"B": 2, "T": 7, "H": 3, "V": 60},
    "model": {"T": 9, "H": 2, "V": 128},
    "past-a-tile": {"T": 33, "V": 129, "rank": 3},
    "wide": {"T": 3, "V": 600},
    "rows-of-a-model": {"T": 17, "V": 128, "rank": 2},
    "groups-256": {"T": 17, "H": 2, "V": 256, "rank": 3, **SMALL_SIGMOID},
    "groups-512": {"T": 5, "V": 512},
    "groups-1024": {"B": 2, "T": 5, "V": 1024, "rank": 2},
    "groups-2048": {"T": 1, "V": 2048, "rank": 2},
    "wide-model": {"T": 2, "V": 5120, "rank": 3},
    "past-8192-columns": {"T": 2, "V": 8200},
    "past-32768-columns": {"T": 2, "V": 32776},
    "batch-of-one-token": {"B": 2, "T": 1, "H": 2, "V": 129, "rank": 2, **SMALL_SIGMOID},
    "one-token-of-a-model": {"B": 2, "T": 1, "V": 128, "rank": 3, **SMALL_SIGMOID},
    "two-axes": {"T": 65, "V": 32, "rank": 2},
    "three-axes": {"B": 2, "T": 17, "V": 32, "rank": 3},
    "sigmoid": {"B": 2, "T": 9, "H": 2, "V": 64, "activation": "sigmoid"},
    "sigmoid-deep": {"T": 12, "V": 60, "rank": 3, "activation": "sigmoid", "value": "deep"},
    "other-eps": {"T": 9, "V": 32, "eps": 1e-5, "value": "small"},
    "small-eps": {"T": 9, "V": 32, "eps": 1e-8, "value": "small"},
    "large-eps": {"T": 9, "V": 32, "eps": 1e-3, "value": "small"},
    "uneven-loss": {"B": 2, "T": 11, "H": 3, "V": 40, "loss": "uneven"},
    "past-blocks-of-rows": {"B": 3, "T": 101, "V": 24},
    # from 1,024 rows on programs may take several: one that dropped the last of them was accepted
    "past-programs-of-rows": {"T": 4099, "V": 24, "rank": 2},
    PAST_16_BITS: {"T": 65539, "V": 2},
    **{
        f"{value}-values": {"B": 2, "T": 11, "H": 2, "V": 40, "value": value}
        for value in REGIMES
        if value != "normal"
    },
    # a backward for heads of 64 columns and more had sigmoids from a table with hard ends
    **{
        f"{value}-of-a-model": {"B": 2, "T": 7, "H": 2, "V": 128, "value": value, **SIGMOID}
        for value in REGIMES
        if value != "normal"
    },
    **{
        f"{value}-wide": {"T": 3, "V": 520, "value": value}
        for value in REGIMES
        if value != "normal"
    },
    **EQUAL,
    **MULTIPLES,
    **NARROW,
}
"""By name: widths around tiles, ranks, both activations, usual eps and others, every regime, and
more rows than a block of the weight's gradient sums.

Past 4,096 columns a row has two tiles, of which the second is not full at a model's width of 5,120.
Widths of models, 256 to 2,048, are norms in groups of 128 to a kernel that was made for heads of
128. Every pair of properties occurs in some problem: tokens, width, rank, activation, eps, batches
and heads."""
LONGER: Final[dict[str, dict[str, Any]]] = {
    "many-rows": {"T": 4099, "V": 64},
}


def named_problems(dtype: str, profile: str) -> dict[str, GatedNormProblem]:
    return panel_of(GatedNormProblem, dtype, profile, PANEL, LONGER)


def random_problems(dtype: str) -> st.SearchStrategy[GatedNormProblem]:
    """Rows of any width and rank, which shrink to one small row."""
    fields: dict[str, st.SearchStrategy[Any]] = {
        "dtype": st.just(dtype),
        "seed": st.integers(0, 2**31 - 1),
        "B": st.integers(1, 2),
        "T": st.integers(1, 40),
        "H": st.integers(1, 3),
        "V": st.sampled_from((1, 2, 3, 16, 31, 32, 33, 60, 64, 65, 128, 200)),
        "rank": st.sampled_from((4, 3, 2)),
        "eps": st.sampled_from((1e-6, 1e-5)),
        "activation": st.sampled_from(("silu", "sigmoid")),
        "value": st.sampled_from([*REGIMES]),
    }
    return st.fixed_dictionaries(fields).map(GatedNormProblem.model_validate)
