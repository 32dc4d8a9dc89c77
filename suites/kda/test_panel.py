"""The fixed panel: named problems that trigger known faults, the same in every run."""

from __future__ import annotations

from kdaverify.problems import Problem
from kdaverify.verdicts.judge import Judge


def test_panel(judge: Judge, named: Problem) -> None:
    judge(named)
