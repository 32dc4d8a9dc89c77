"""A backward is that of its own call, whatever was called since."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kdaverify.checks.calls.autograd import gradients_of_call, recorded, unconverted
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome


def _two_forwards(case: CallRuleCase) -> list[Outcome]:
    """A training step calls a kernel once a layer, all in one shape, before the first backward."""
    names = unconverted(case)
    plain = gradients_of_call(case, recorded(case, names))
    first = recorded(case, names)
    other = replace(case, problem=case.problem.replace(seed=case.problem.seed + 1))
    # held until the end: memory of a graph that is gone may be used again
    _second = recorded(other, names)
    found = gradients_of_call(case, first)
    said = "where another call of the shape came between forward and backward"
    return same_or_right(plain, found, case.judged_back, said)


RULES: Final = (
    CallRule(
        "two-forwards",
        "the gradients of a call do not depend on a later call of the same shape",
        "what the backward needs, kept by shape or in one buffer of all calls",
        _two_forwards,
        size="tails",
        spare=False,
        inside=True,
        backward=True,
        costly=True,
    ),
)
