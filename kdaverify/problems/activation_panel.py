"""The fixed problems of the operations beside the kernel: small, and together enough to show what drawn ones may miss."""

from __future__ import annotations

from typing import Any, Final

from kdaverify.problems.activation import GATES, ActivationProblem, Op

_SIZES: Final = {"B": 2, "T": 17, "HV": 3}
_PANEL: Final[dict[str, dict[str, Any]]] = {
    "usual": {"values": "normal", "bias": "normal"},
    "mixed": {"values": "mixed", "rates": "wide", "bias": "wide", "parameters": "bf16"},
    # Its rates are small, usual and large.
    "extreme": {"values": "mixed", "rates": "extreme", "cotangent": "small", "seed": 19},
    "no-loss": {"values": "mixed", "bias": "normal", "cotangent": "zero"},
}
NAMES: Final = tuple(_PANEL)


def activation_panel(name: str, op: Op, dtype: str) -> ActivationProblem:
    """The problem called `name`, of NAMES, for an operation in a format."""
    beside = {"rates", "bias", "parameters"} if op not in GATES else set[str]()
    chosen = {axis: draw for axis, draw in _PANEL[name].items() if axis not in beside}
    return ActivationProblem(op=op, dtype=dtype, K=1 if op == "beta_sigmoid" else 20, **_SIZES, **chosen)  # pyright: ignore[reportArgumentType]
