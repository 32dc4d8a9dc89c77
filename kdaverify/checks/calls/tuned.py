"""Whatever configuration a tuner picks, the result is right."""

from __future__ import annotations

from dataclasses import replace

from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome


def _each(case: CallRuleCase) -> list[Outcome]:
    configurations = case.adapter.configurations()
    if not configurations:
        raise Unreachable("it lets no configuration of a tuner be chosen")
    plain, found = case.run(), list[Outcome]()
    for name, adapter in configurations.items():
        one = replace(case, adapter=adapter)
        found = same_or_right(plain, one.run(), one.judged, f"under {name}")
        if any(outcome.status.rejects for outcome in found):
            break
    return found


RULES = (
    CallRule(
        "tuned",
        "every configuration of the tuner, forced one by one",
        "configurations that race, or run out of a resource (L6, WU8, B19, B22)",
        _each,
        size="tails",
        costly=True,
        profile="acceptance",
    ),
)
