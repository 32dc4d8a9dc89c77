"""The fixed panel of an operator: named problems that trigger known faults,
the same in every run.
"""

from __future__ import annotations

from typing import Any

from kdaverify.verdicts.judge import Judge


def test_panel(judge: Judge, named: Any) -> None:
    judge(named)
