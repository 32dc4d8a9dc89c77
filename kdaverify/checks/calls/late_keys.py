"""Keys that count begin late: behind tens of thousands of weight 0.

A call of attention over as many keys takes minutes of exact values. Where all but the last few have
weight 0, exactly, it returns what it does without them: a decode kernel whose reduction has 64
lanes for splits of 256 keys left out those after 16,384, and was accepted.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kdaverify.adapters.base import is_interpreted
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome

LATE: Final = 33_024
"""Keys before: more than 16 bits with a sign count, 129 splits of 256, whole pages of up to 256."""


def _late(case: CallRuleCase) -> list[Outcome]:
    if is_interpreted(case.adapter):
        raise Unreachable(f"an interpreter would take minutes over {LATE:,} keys")
    operator = case.adapter.operator
    if not operator.has_far_keys:
        raise Unreachable("it has no keys of weight 0")
    case = _small(case)
    short, long = operator.behind_far_keys(case.inputs, LATE)
    return case.judged(case.run(long), short)


def _small(case: CallRuleCase) -> CallRuleCase:
    """The case of a call that may be longer: without a mask, where a causal one is top-left aligned
    and takes as many keys as queries.
    """
    reasons = list[str]()
    for changed in ({}, {"causal": False}) if case.problem.causal else ({},):
        try:
            small = replace(case, problem=case.problem.replace(**changed))
            fields = case.adapter.operator.with_keys_before(small.problem, LATE)
            if small.beside(**fields) == small.problem.replace(**fields):
                return small
            reasons.append(f"it takes no {LATE:,} keys")
        except Unreachable as reason:
            reasons.append(str(reason))
    raise Unreachable("; ".join(dict.fromkeys(reasons)))


RULES: Final = (
    CallRule("late-keys", f"behind {LATE:,} keys of weight 0 a request returns what it does alone",
             "splits that the reduction has no lanes for, lengths and positions in 16 bits, tables"
             " and lists read up to a limit", _late, packed=False, far=True, spare=False, once=True,
             costly=True),
)  # fmt: skip
