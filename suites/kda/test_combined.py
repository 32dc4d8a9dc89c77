"""Combined: every pair of the properties that faults depend on jointly, every triple from acceptance on, in a few problems each."""

from __future__ import annotations

from kdaverify.problems.combinations import Row
from kdaverify.verdicts.judge import Judge


def test_combined(judge: Judge, row: Row) -> None:
    judge(row.problem, direction=row.direction)
