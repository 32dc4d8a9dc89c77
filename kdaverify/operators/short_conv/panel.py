"""Fixed problems of the short convolution, each named for its purpose, and random ones."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import strategies as st

from kdaverify.operators.short_conv.problem import REGIMES, ShortConvProblem
from kdaverify.operators.short_conv.shapes import EQUAL, LONG_TAPS, SHORT, STATEFUL, TAPS
from kdaverify.operators.sizes import panel_of

STARTS: Final = (17,) * 16
"""Starts of sequences at every offset of a tile of 16 rows, and one past each."""
PAST_16_BITS: Final = "past-16-bit-rows"
"""More rows than 16 bits count, and than an axis of a grid has programs."""
PANEL: Final[dict[str, dict[str, Any]]] = {
    "one-token": {"B": 2, "T": 1, "D": 17, **STATEFUL},
    "shorter-than-history": {"B": 2, "T": 2, "D": 8, **STATEFUL},
    "history": {"B": 2, "T": 3, "D": 8, **STATEFUL},
    "batch": {"B": 5, "T": 7, "D": 6, **STATEFUL},
    "window": {"T": 4, "D": 8, "state": "random"},
    "tile-less-one": {"B": 2, "T": 63, "D": 3, "bias": True},
    "tile": {"T": 64, "D": 64},
    "tile-plus-one": {"B": 2, "T": 65, "D": 33, "state": "random"},
    "tiles": {"T": 140, "D": 5, **STATEFUL},
    "batch-of-tiles": {"B": 2, "T": 256, "D": 3, "W": 2, "activation": "none"},
    "pack-of-tiles": {
        "lengths": (64, 64),
        "T": 128,
        "D": 16,
        "W": 3,
        "activation": "none",
        **STATEFUL,
    },
    "two-taps-of-tiles": {"T": 128, "D": 6, "W": 2, "activation": "none"},
    "past-tiles": {"T": 70, "D": 3, "W": 3, "activation": "none"},
    "batch-past-tiles": {"B": 2, "T": 70, "D": 16, "W": 2, "activation": "none"},
    "few-tokens": {"T": 9, "D": 16, "W": 2, "activation": "none"},
    "below-three-taps": {"T": 2, "D": 6, "W": 3, "activation": "none"},
    "pack-of-one-token": {"lengths": (1,), "T": 1, "D": 16, "W": 2, "activation": "none"},
    "two-taps": {"T": 19, "D": 8, "W": 2, **STATEFUL},
    "three-taps": {"B": 2, "T": 18, "D": 5, "W": 3, **STATEFUL},
    "no-activation": {"B": 2, "T": 9, "D": 100, "activation": "none", **STATEFUL},
    "starts": {"lengths": STARTS, "T": sum(STARTS), "D": 4, "state": "random"},
    "fresh-starts": {"lengths": STARTS, "T": sum(STARTS) + 5, "D": 4},
    "short-sequences": {"lengths": (1, 0, 2, 3, 4, 0, 5, 1), "T": 19, "D": 9, **STATEFUL},
    "short-fresh": {"lengths": (1, 0, 2, 3, 1, 0), "T": 7, "D": 9, "activation": "none"},
    **{
        f"{value}-values": {"B": 2, "T": 21, "D": 18, "value": value, "state": "random"}
        for value in REGIMES
        if value != "normal"
    },
    "odd-channels": {"T": 9, "D": 515, **STATEFUL},
    "uneven-loss": {"B": 2, "T": 21, "D": 18, "loss": "uneven", **STATEFUL},
    # sequences whose numbers are one in a byte, with nothing but empty ones between
    "empties-between": {"lengths": (5, *(0,) * 255, 4, 0, 3), "T": 12, "D": 3, "state": "random"},
    # a transform of 8,192 tokens spreads the rounding of the largest over all
    "spike-of-8192-tokens": {"T": 8192, "D": 2, "value": "spike", "activation": "none"},
    "past-blocks": {"T": 4097, "D": 2, **STATEFUL},
    "pack-past-blocks": {"lengths": (1021, 3, 2050, 0, 5), "T": 3080, "D": 2, "state": "random"},
    PAST_16_BITS: {"T": 65539, "D": 1},
    "deep-without-activation": {
        "T": 12,
        "D": 9,
        "value": "cancelling",
        "activation": "none",
        "state": "random",
    },
    **EQUAL,
    **SHORT,
    **TAPS,
    **LONG_TAPS,
}
"""By name. Every pair of properties occurs in some problem: batches, packs or neither, tokens
against tiles, channels, taps, state, bias and activation. Kernels that took batches of whole tiles
for one sequence were accepted before, and one that gave the last of an odd number of channels,
past 128, another's bias. Sequences shorter than W - 1 shift old columns of the state in; empty ones
keep it. Long ones have few channels: blocks of up to 4,096 tokens end
within them, one or two tokens before the end. A port whose last tile of 1,024 wrote the final state
was accepted while three of its tokens, which fill the state, were in it."""
LONGER: Final[dict[str, dict[str, Any]]] = {
    "every-start": {"lengths": (65,) * 64, "T": 65 * 64, "D": 4, **STATEFUL},
    "wide": {"B": 2, "T": 130, "D": 1025, **STATEFUL},
    "many-tokens": {"T": 4099, "D": 16, "bias": True},
}
"""In acceptance and nightly too."""
WIDTHS: Final = (1, 2, 3, 8, 16, 17, 33, 64, 100, 129)
RANDOM_TAPS: Final = (4, 3, 2) * 3 + (5, 6, 7, 8)
"""Kernels may decline more than four: random cases have those less often."""


def named_problems(dtype: str, profile: str) -> dict[str, ShortConvProblem]:
    return panel_of(ShortConvProblem, dtype, profile, PANEL, LONGER)


@st.composite
def random_problems(draw: st.DrawFn, dtype: str) -> ShortConvProblem:
    """Batches and packs of any lengths, which shrink to one short sequence."""
    fields: dict[str, Any] = {
        "dtype": dtype,
        "seed": draw(st.integers(0, 2**31 - 1)),
        "D": draw(st.sampled_from(WIDTHS)),
        "W": draw(st.sampled_from(RANDOM_TAPS)),
        "bias": draw(st.booleans()),
        "state": draw(st.sampled_from(("absent", "random"))),
        "activation": draw(st.sampled_from(("silu", "none"))),
        "value": draw(st.sampled_from([*REGIMES])),
    }
    if draw(st.booleans()):
        lengths = tuple(draw(st.lists(st.integers(0, 40), min_size=1, max_size=8)))
        lengths = lengths if sum(lengths) else (*lengths, 1)
        return ShortConvProblem(lengths=lengths, T=sum(lengths) + draw(st.integers(0, 3)), **fields)
    return ShortConvProblem(
        B=draw(st.integers(1, 3)),
        T=draw(st.one_of(st.integers(1, 9), st.integers(1, 140))),
        **fields,
    )
