"""Contract of the call: what a caller may rely on whatever the numbers."""

from __future__ import annotations

from kdaverify.checks.calls import CallRuleTest, shortened
from kdaverify.verdicts.judge import Judge


def test_calls(judge: Judge, called: CallRuleTest) -> None:
    interpreted = judge.adapter.environment()["mode"] == "interpreted"
    judge(called.problem, **(shortened(called.detail) if interpreted else called.detail))
