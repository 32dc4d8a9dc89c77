"""What a caller may rely on, whatever the numbers."""

from kdaverify.checks.calls.calls import calls
from kdaverify.checks.calls.questions import CallRuleTest, questions, shortened
from kdaverify.checks.calls.rules import RULES

__all__ = ["RULES", "CallRuleTest", "calls", "questions", "shortened"]
