"""What a kernel allocates holds nothing until it is written."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kdaverify.adapters.poison import poisoned_allocations
from kdaverify.checks.calls.bits import Judge, same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome


def _unwritten(
    case: CallRuleCase,
    call: Callable[[CallRuleCase], Tensors],
    judge: Callable[[CallRuleCase], Judge],
) -> list[Outcome]:
    case.reaches("buffers")
    plain = call(case)
    with poisoned_allocations():
        found = call(case)
    return same_or_right(
        plain, found, judge(case), "where whatever torch allocates and nobody writes is NaN"
    )


_EXPOSES = (
    "elements of outputs and work space that are read, or returned, without having been written"
    " (A3, V4, B12)"
)
RULES = (
    CallRule(
        "unwritten",
        "NaN in all freshly allocated memory changes nothing",
        _EXPOSES,
        partial(_unwritten, call=CallRuleCase.run, judge=lambda case: case.judged),
        size="tails",
        memory=True,
        channel="buffers",
    ),
    CallRule(
        "unwritten-backward",
        "the same of all gradients",
        _EXPOSES,
        partial(_unwritten, call=CallRuleCase.back, judge=lambda case: case.judged_back),
        size="tails",
        spare=False,
        memory=True,
        channel="buffers",
        backward=True,
    ),
)
