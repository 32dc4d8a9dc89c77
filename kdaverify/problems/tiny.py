"""Problems of few tokens and channels, for checks that call a kernel for every element."""

from __future__ import annotations

from typing import Final, TypedDict


class TinySizes(TypedDict):
    """Sizes of tiny problems for `problems`."""

    max_cost: float
    widths: tuple[int, ...]


TINY: Final[TinySizes] = {"max_cost": 0.0037, "widths": (1, 2, 3, 4)}
"""At most nine tokens, key and value widths up to 4."""

TINIEST: Final[TinySizes] = {"max_cost": 0.0017, "widths": (1, 2, 3)}
"""At most four tokens, widths up to 3."""


class Regimes(TypedDict):
    """Names of regimes for `problems`."""

    gate: tuple[str, ...]
    beta: tuple[str, ...]


INSIDE: Final[Regimes] = {
    "gate": ("log-sigmoid", "slow", "mild", "bound-5", "strong-then-weak", "one-token-reset"),
    "beta": ("uniform",),
}
"""Gates and betas that may move both ways: finite, below 0 and above 0 by far more than the step of
a difference in float64."""
