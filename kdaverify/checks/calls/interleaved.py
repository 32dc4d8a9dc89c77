"""A backward is that of its own call, whatever was called since."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kdaverify.checks.calls.autograd import gradients_of_call, recorded, unconverted
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome


def _two_forwards(case: CallRuleCase) -> list[Outcome]:
    """A training step calls a kernel once a layer, all in one shape, before the first backward."""
    names = unconverted(case)
    plain = gradients_of_call(case, recorded(case, names))
    first = recorded(case, names)
    other = replace(case, problem=case.problem.replace(**_other_numbers(case)))
    # held until the end: memory of a graph that is gone may be used again
    _later = [recorded(each, names) for each in (other, *_under_other_options(case))]
    found = gradients_of_call(case, first)
    said = "where other calls of the shape came between forward and backward"
    return same_or_right(plain, found, case.judged_back, said)


def _other_numbers(case: CallRuleCase) -> dict[str, int]:
    return {"seed": case.problem.seed + 1}


def _under_other_options(case: CallRuleCase) -> Iterator[CallRuleCase]:
    """The call under another scale, and under other masks: what a backward needs of its call is not
    in tensors alone. One that read the scale of the latest forward was accepted.
    """
    operator = case.adapter.operator
    scale, keys = operator.other_scale(case.problem) or {}, operator.other_keys(case.problem)
    both = [{**fields, **scale} for fields in keys.values()]
    # what is kept may be of the latest call alone: that differs in all that it can
    for fields in (*keys.values(), *([scale] if scale else ()), *both):
        try:
            # Of the first call's own numbers a buffer of the latest holds what the first one had.
            yield replace(case, problem=case.beside(**fields, **_other_numbers(case)))
        except Unreachable:
            continue


RULES: Final = (
    CallRule(
        "two-forwards",
        "the gradients of a call do not depend on later calls of its shape, of any scale",
        "what the backward needs, kept by shape or in one buffer of all calls",
        _two_forwards,
        size="tails",
        spare=False,
        inside=True,
        backward=True,
        costly=True,
    ),
)
