"""A small problem of KDA to start from, and the problems' schema with all regimes."""

from __future__ import annotations

from typing import Any, Final

from kdaverify.problems.problem import Problem
from kdaverify.problems.regimes import REGIMES

EXAMPLE: Final = Problem(
    B=1, T=65, H=2, HV=4, K=32, V=32, dtype="bf16", gate="mild", key="random", beta="uniform",
    state="random", value="normal", seed=1,
)  # fmt: skip
"""One token more than a chunk of 64, two value heads for each key head."""
ABOUT: Final = {
    "op": "the operator",
    "B": "batch entries; 1 where sequences are packed",
    "T": "tokens of each batch entry; of the whole pack where sequences are packed",
    "H": "key heads",
    "HV": "value heads, a multiple of H",
    "K": "key width of a head",
    "V": "value width of a head",
    "lengths": (
        "tokens of each packed sequence; absent for B separate ones; tokens past their sum are"
        " padding"
    ),
    "dtype": "format of q, k, v, beta and o; gates and states are fp32 (fp64 beside fp64)",
    "gates": (
        "log decays of a value head and token: channel (one a key channel; the default), head (one"
        " for all of them) or none"
    ),
    "gate_range": "what log decays are clamped to: [lowest, highest], null where a side is open",
    "beta_range": "what beta is clamped to, likewise",
    "scale": "factor of the output; absent for K^-1/2",
    "seed": "of every random number: the same seed gives the same tensors on any machine",
}


def schema() -> dict[str, Any]:
    """The JSON schema of a problem: every field with its meaning, every regime with its names."""
    found = Problem.model_json_schema()
    del found["description"]
    found["properties"] = {name: _field(name, field) for name, field in found["properties"].items()}
    return {
        "title": "A problem of kdaverify",
        **{name: value for name, value in found.items() if name != "title"},
    }


def _field(name: str, given: dict[str, Any]) -> dict[str, Any]:
    own = {key: value for key, value in given.items() if key != "title"}
    if name in REGIMES:
        return {
            **own,
            "enum": list(REGIMES[name]),
            "description": "regime: `kdaverify list regimes` names what each exposes",
        }
    return {**own, "description": ABOUT[name]}
