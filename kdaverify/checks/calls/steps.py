"""The decode entry point returns exact values: a kernel with own heads, slots, layouts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.execute import CallError
from kdaverify.checks.outcome import (
    Outcome,
    declined,
    first_wrong_or_last,
    of_failed_call,
    placed,
    rejected,
)
from kdaverify.checks.status import Status

CHANGES: Final[tuple[dict[str, Any], ...]] = (
    {"B": 3, "H": 3, "HV": 9, "gate": "log-sigmoid"},
    {"B": 1, "H": 1, "HV": 33, "gate": "log-sigmoid"},
    {"K": 8, "V": 8},
    {"gate": "vanishing", "beta": "zero"},
    {"B": 1, "H": 1, "HV": 1, "K": 160, "V": 8, "gate": "log-sigmoid"},
    {"B": 1, "H": 1, "HV": 2, "K": 8, "V": 160, "gate": "log-sigmoid"},
    {"B": 1, "H": 1, "HV": 1, "K": 256, "V": 256, "gate": "log-sigmoid"},
    {"B": 67, "H": 1, "HV": 2, "gate": "log-sigmoid"},
)
"""Beside the call of rules of one token (two entries of two key heads and four value heads): an odd
number of each; 33 value heads of one key head, more than a program keeps; square states, which fit
when they are transposed; gates next to 0 where nothing is written, so that they alone show: a
decode kernel that left them out was accepted. Gates of heads differ: the ninth of a key head had
those of the first. Keys and values past 128 columns, which two registers of 64 lanes do not hold: a
decode kernel that dropped the others was accepted. More requests than two waves of 32: copies of
one request hid that a third had the gates of the first.

Random cases of resumed runs have two sequences at most, and in smoke nearly always one head: a
decode kernel that mapped heads of groups wrongly was accepted."""

BATCHES: Final = ((4, 3), (8, 5))
"""Sequences of a call and of the next one: both are padded to the same power of two."""


def _step(case: CallRuleCase) -> list[Outcome]:
    """The outcomes of the first call that is wrong, or else of the last."""
    skips, found = list[Outcome](), list[Outcome]()
    for one in _cases(case):
        judged = _judged(one)
        if rejected(judged):
            return placed(judged, f"\n  of one token: {one.problem.describe()}")
        if all(outcome.status is Status.SKIP for outcome in judged):
            skips += judged
        else:
            found = judged
    return [*skips, *found]


def _judged(case: CallRuleCase) -> list[Outcome]:
    try:
        return case.judged(case.step())
    except CallError as fault:
        # more taps than an entry point is made for may be declined there, as in the prefill
        return declined(of_failed_call(case.adapter, case.inputs, fault))


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
            # What the interface cannot express is not tested; the first call always is.
            continue
        if other not in seen:
            seen.append(other)
            yield replace(case, problem=other)


def _after_more(case: CallRuleCase) -> list[Outcome]:
    return first_wrong_or_last(
        placed(_fewer(case, more, fewer), f"\n  of {fewer} sequences, after a call of {more}")
        for more, fewer in BATCHES
    )


def _fewer(case: CallRuleCase, more: int, fewer: int) -> list[Outcome]:
    larger, smaller = (replace(case, problem=case.beside(B=B)) for B in (more, fewer))
    larger.step()
    return smaller.judged(smaller.step())


_rule = partial(CallRule, size="one", packed=False, sequences=True, decode=True)
_once = partial(_rule, costly=True, once=True)
RULES = (
    _rule("step",
          "the decode entry point returns the exact values of one token: of groups of heads, of"
          " several sequences, under every option",
          "heads, slots, scale, layout or options of another kernel than the prefill (H15, H16,"
          " S8)", _step),
)  # fmt: skip
AFTER_MORE: Final = (
    _once("step-after-more",
          "the decode entry point returns exact values of 3 and 5 sequences after calls of 4 and 8",
          "rows of a padded batch that write the states of a larger call's slots", _after_more),
)  # fmt: skip
