"""Combined: every pair of the properties that faults depend on jointly, every triple from
acceptance on, in a few problems each.
"""

from __future__ import annotations

from kdaverify.problems.combinations import CombinationRow
from kdaverify.verdicts.judge import Judge


def test_combined(judge: Judge, row: CombinationRow) -> None:
    judge(row.problem, direction=row.direction)
