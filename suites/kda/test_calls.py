"""Contract of the call: what a caller may rely on whatever the numbers."""

from __future__ import annotations

from kdaverify.checks.calls import Question
from kdaverify.verdicts.judge import Judge


def test_calls(judge: Judge, called: Question) -> None:
    judge(called.problem, **called.detail)
