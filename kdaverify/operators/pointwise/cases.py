"""Problems of pointwise operations: random ones, which shrink to one value, and a panel."""

from __future__ import annotations

from typing import Any, Final, get_args

from hypothesis import strategies as st

from kdaverify.operators.pointwise.draws import BIASES, COTANGENTS, RATES, ROWS, VALUES
from kdaverify.operators.pointwise.problem import GATES, ActivationProblem, Lies, Op

MOST: Final = 20_000
"""Elements of z, logits or x."""

# Every list begins with the simplest choice.
_TOKENS = (1, 2, 17, 33, 64, 65, 130)
_HEADS = (1, 2, 3, 5)
_WIDTHS = (1, 16, 20, 64, 100, 128)
_SETTINGS: dict[Op, tuple[float | None, ...]] = {
    "gate_softplus": (None,),
    "gate_bounded": (None, -1.0),
    "beta_sigmoid": (None, 2.0),
    "l2norm": (None, 1e-12),
}


@st.composite
def activation_problems(draw: st.DrawFn, op: Op, dtype: str) -> ActivationProblem:
    """Problems of one operation in one format, of at most MOST elements.

    Args:
        op: a key of `oracles.pointwise.operations.OPERATIONS`.
        dtype: fp32, bf16 or fp16.
    """
    sizes = {
        "T": draw(st.sampled_from(_TOKENS)),
        "HV": draw(st.sampled_from(_HEADS)),
        "B": draw(st.sampled_from((1, 2))),
    }
    rows = sizes["T"] * sizes["HV"] * sizes["B"]
    # The widest that fits below the random one: were the list cut instead, shrinking T would change
    # what K means.
    widest = min(1 if op == "beta_sigmoid" else MOST // rows, draw(st.sampled_from(_WIDTHS)))
    K = max(width for width in _WIDTHS if width <= widest)
    drawn: dict[str, Any] = {
        "values": draw(st.sampled_from(tuple(ROWS if op == "l2norm" else VALUES))),
        "cotangent": draw(st.sampled_from(tuple(COTANGENTS))),
        "setting": draw(st.sampled_from(_SETTINGS[op])),
    }
    if op in GATES:
        drawn["rates"] = draw(st.sampled_from(tuple(RATES)))
        drawn["bias"] = draw(st.sampled_from(tuple(BIASES)))
        drawn["parameters"] = draw(st.sampled_from(("fp32", "bf16")))
    seed = int.from_bytes(draw(st.binary(min_size=2, max_size=2)), "big")
    return ActivationProblem.model_validate(
        {"op": op, "dtype": dtype, "K": K, **sizes, **drawn, "seed": seed}
    )


_SIZES: Final = {"B": 2, "T": 17, "HV": 3}
_PANEL: Final[dict[str, dict[str, Any]]] = {
    "usual": {"values": "normal", "bias": "normal"},
    "mixed": {"values": "mixed", "rates": "wide", "bias": "wide", "parameters": "bf16"},
    # Its rates are small, usual and large.
    "extreme": {"values": "mixed", "rates": "extreme", "cotangent": "small", "seed": 19},
    "no-loss": {"values": "mixed", "bias": "normal", "cotangent": "zero"},
}
NAMES: Final = tuple(_PANEL)
PAST_16_BITS: Final = "past-16-bit-rows"
_SHAPES: Final[dict[str, dict[str, Any]]] = {
    PAST_16_BITS: {"values": "normal", "B": 1, "T": 65539, "HV": 1, "K": 1},
    **{
        f"exchanged-{lies}": {
            "values": "normal",
            "bias": "normal",
            "lies": lies,
            **dict.fromkeys(("B", "T", "HV", "K"), 4),
        }
        for lies in get_args(Lies)
        if lies != "dense"
    },
}
"""Rows past 16 bits: a model of 16 heads has as many at 4,096 tokens, more than a grid's second and
third axes have programs."""
SHAPES: Final = tuple(_SHAPES)


def activation_panel(name: str, op: Op, dtype: str) -> ActivationProblem:
    """The problem called `name`, of NAMES or SHAPES, for an operation in a format."""
    beside = {"rates", "bias", "parameters"} if op not in GATES else set[str]()
    chosen = {
        axis: draw for axis, draw in {**_PANEL, **_SHAPES}[name].items() if axis not in beside
    }
    wanted = {"op": op, "dtype": dtype, "K": 20, **_SIZES, **chosen}
    return ActivationProblem.model_validate(
        {**wanted, **({"K": 1} if op == "beta_sigmoid" else {})}
    )
