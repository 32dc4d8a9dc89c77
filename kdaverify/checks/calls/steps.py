"""The decode entry point returns exact values: a kernel with own heads, slots, layouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome

CHANGES: Final[tuple[dict[str, Any], ...]] = (
    {"B": 3, "H": 3, "HV": 9, "gate": "log-sigmoid"},
    {"B": 1, "H": 1, "HV": 33, "gate": "log-sigmoid"},
    {"K": 8, "V": 8},
    {"gate": "vanishing", "beta": "zero"},
)
"""Beside the call of rules of one token (two entries of two key heads and four value heads): an odd
number of each; 33 value heads of one key head, more than a program keeps; square states, which fit
when they are transposed; gates next to 0 where nothing is written, so that they alone show: a
decode kernel that left them out was accepted. Gates of heads differ: the ninth of a key head had
those of the first.

Random cases of resumed runs have two sequences at most, and in smoke nearly always one head: a
decode kernel that mapped heads of groups wrongly was accepted."""


def _step(case: CallRuleCase) -> list[Outcome]:
    """The outcomes of the first call that is wrong, or else of the last."""
    found = list[Outcome]()
    for one in _cases(case):
        found = one.judged(one.step())
        if any(outcome.status.rejects for outcome in found):
            said = f"\n  of one token: {one.problem.describe()}"
            return [replace(outcome, message=f"{outcome.message}{said}") for outcome in found]
    return found


def _cases(case: CallRuleCase) -> Iterator[CallRuleCase]:
    yield case
    fields, seen = type(case.problem).model_fields, [case.problem]
    further = case.adapter.operator.other_steps(case.adapter, case.problem)
    changes: Iterable[Mapping[str, Any]] = (*CHANGES, *further)
    for change in changes:
        own = {name: value for name, value in change.items() if name in fields}
        try:
            other = case.beside(**own)
        except Unreachable:
            # What the interface cannot express is no question; the first call always is one.
            continue
        if other not in seen:
            seen.append(other)
            yield replace(case, problem=other)


RULES = (
    CallRule(
        "step",
        "the decode entry point returns the exact values of one token: of groups of heads, of"
        " several sequences, under every option",
        "heads, slots, scale, layout or options of another kernel than the prefill (H15, H16, S8)",
        _step,
        size="one",
        packed=False,
        sequences=True,
        decode=True,
    ),
)
