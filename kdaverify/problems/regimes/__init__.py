"""Named ways to draw gates, queries and keys, betas, states and values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kdaverify.problems.regimes.beta import BETAS
from kdaverify.problems.regimes.gate import GATES
from kdaverify.problems.regimes.key import COHERENCE, KEYS
from kdaverify.problems.regimes.regime import Draw, Regime
from kdaverify.problems.regimes.state import STATES
from kdaverify.problems.regimes.value import VALUES

REGIMES: Mapping[str, Mapping[str, Regime[Any]]] = {
    "gate": GATES,
    "key": KEYS,
    "beta": BETAS,
    "state": STATES,
    "value": VALUES,
}
"""Every regime by axis and name, simplest first."""

__all__ = ["BETAS", "COHERENCE", "GATES", "KEYS", "REGIMES", "STATES", "VALUES", "Draw", "Regime"]
