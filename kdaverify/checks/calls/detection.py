"""What a count of equal calls excludes:
the rarest race that it detects with a given probability.
"""

from __future__ import annotations

from typing import Final

CONFIDENCE: Final = 0.95


def detectable_share(calls: int, confidence: float = CONFIDENCE) -> float:
    """The smallest share of calls that a race must change to be detected with probability
    `confidence`.

    Math: a race that changes each call independently with probability p leaves n calls equal with
    probability (1 - p)^n, so it is
        detected with probability 1 - (1 - p)^n, and that is `confidence` at p = 1 - (1 -
        confidence)^(1 / n).
    Args:
        calls: n, how many calls are compared.
    """
    return 1 - (1 - confidence) ** (1 / calls)


def excluded(calls: int) -> str:
    """The phrase for a verdict on `calls` equal calls."""
    return (
        f"a race that changes {detectable_share(calls):.2g} of the calls is detected with"
        f" probability {CONFIDENCE:.0%}"
    )
