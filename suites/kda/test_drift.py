"""Drift: over long runs the error grows no faster than that of conforming kernels,
however the tokens are fed.
"""

from __future__ import annotations

from kdaverify.problems import Problem
from kdaverify.problems.drift_probes import Way, shortened
from kdaverify.verdicts.judge import Judge


def test_drift(judge: Judge, drifting: tuple[Way, Problem]) -> None:
    way, problem = drifting
    interpreted = judge.adapter.environment()["mode"] == "interpreted"
    judge(shortened(problem) if interpreted else problem, way=way)
