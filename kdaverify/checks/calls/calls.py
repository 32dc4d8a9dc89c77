"""The contract of a call: one rule tested on one problem."""

from __future__ import annotations

from typing import Any

from kdaverify.adapters.base import Adapter
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.inside import tried_inside
from kdaverify.checks.calls.rules import RULES
from kdaverify.checks.execute import CallError
from kdaverify.checks.outcome import Outcome, skipped
from oracles.autograd import ForwardOnlyError

FEW = 8


def calls(adapter: Adapter, problem: Any, *, rule: str, times: int = FEW) -> list[Outcome]:
    """Tests what a caller may rely on whatever the numbers.

    Args:
        rule: a name of RULES.
        times: how often a rule about repetition calls.
    """
    if rule not in RULES:
        raise ValueError(f"calls: no rule {rule!r}; there are {', '.join(RULES)}")
    if not adapter.open_ended:
        return skipped("its outputs come from files: no call is made that could differ")
    if RULES[rule].is_real and adapter.environment()["mode"] == "interpreted":
        return skipped("an interpreter would take hours at this size")
    case = CallRuleCase(adapter, problem, times)
    try:
        return tried_inside(case, rule) if RULES[rule].needs_its_process else RULES[rule].ask(case)
    except (Unreachable, ForwardOnlyError) as reason:
        return skipped(str(reason))
    except CallError as fault:
        return [Outcome(fault.output, fault.status, fault.message)]
