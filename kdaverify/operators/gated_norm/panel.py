"""The fixed problems of the gated RMSNorm, each named for what it exposes, and the random ones."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from kdaverify.operators.gated_norm.problem import REGIMES, GatedNormProblem
from kdaverify.operators.gated_norm.shapes import EQUAL, MULTIPLES, NARROW

PAST_16_BITS: Final = "past-16-bit-rows"
"""More rows than 16 bits count, and than an axis of a grid has programs."""
SMALL_SIGMOID: Final[dict[str, Any]] = {"activation": "sigmoid", "value": "small", "eps": 1e-5}
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
    "past-8192-columns": {"T": 2, "V": 8200},
    "batch-of-one-token": {"B": 2, "T": 1, "H": 2, "V": 129, "rank": 2, **SMALL_SIGMOID},
    "one-token-of-a-model": {"B": 2, "T": 1, "V": 128, "rank": 3, **SMALL_SIGMOID},
    "two-axes": {"T": 65, "V": 32, "rank": 2},
    "three-axes": {"B": 2, "T": 17, "V": 32, "rank": 3},
    "sigmoid": {"B": 2, "T": 9, "H": 2, "V": 64, "activation": "sigmoid"},
    "sigmoid-deep": {"T": 12, "V": 60, "rank": 3, "activation": "sigmoid", "value": "deep"},
    "other-eps": {"T": 9, "V": 32, "eps": 1e-5, "value": "small"},
    "small-eps": {"T": 9, "V": 32, "eps": 1e-8, "value": "small"},
    "large-eps": {"T": 9, "V": 32, "eps": 1e-3, "value": "small"},
    "past-blocks-of-rows": {"B": 3, "T": 101, "V": 24},
    # from 1,024 rows on programs may take several: one that dropped the last of them was accepted
    "past-programs-of-rows": {"T": 4099, "V": 24, "rank": 2},
    PAST_16_BITS: {"T": 65539, "V": 2},
    **{
        f"{value}-values": {"B": 2, "T": 11, "H": 2, "V": 40, "value": value}
        for value in REGIMES
        if value != "normal"
    },
    **EQUAL,
    **MULTIPLES,
    **NARROW,
}
"""By name: widths around tiles, ranks, both activations, usual eps and others, every regime, and
more rows than a block of the weight's gradient sums.

Widths of models, 256 to 2,048, are norms in groups of 128 to a kernel that was made for heads of
128. Every pair of properties occurs in some problem: tokens, width, rank, activation, eps, batches
and heads."""
LONGER: Final[dict[str, dict[str, Any]]] = {
    "many-rows": {"T": 4099, "V": 64},
}


def named_problems(dtype: str, profile: str) -> dict[str, GatedNormProblem]:
    chosen = PANEL if profile == "smoke" else {**PANEL, **LONGER}
    return {
        name: GatedNormProblem.model_validate({"dtype": dtype, **fields})
        for name, fields in chosen.items()
    }


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
