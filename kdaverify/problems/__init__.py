"""What a kernel is tested on: problems, regimes, the fixed panel, strategies, settings."""

from __future__ import annotations

from kdaverify.canonical import ProblemError
from kdaverify.problems.axes import DTYPES, TORCH
from kdaverify.problems.cost import DRAWN_LIMIT, cost
from kdaverify.problems.cotangents import cotangents
from kdaverify.problems.domain import EVERYTHING, Domain, DomainError
from kdaverify.problems.panel import PANEL, NamedProblem, panel
from kdaverify.problems.problem import Problem
from kdaverify.problems.profiles import PROFILES, settings_for
from kdaverify.problems.regimes import REGIMES, Regime
from kdaverify.problems.strategies import Bounds, problems

__all__ = [
    "DRAWN_LIMIT", "DTYPES", "EVERYTHING", "PANEL", "PROFILES", "REGIMES", "TORCH", "Bounds",
    "Domain", "DomainError", "NamedProblem", "Problem", "ProblemError", "Regime", "cost",
    "cotangents", "panel", "problems", "settings_for",
]  # fmt: skip
