"""Sizes that kernels choose paths by, in every pair or triple.

The panel has each of them, and few together: layouts of splits that only KV heads beside each other
show, heads of a program that only a group of 20 divides otherwise. A hundred emulated kernels for
each of a hundred problems would take minutes. Results within the proven bound of every element
pass; others are judged as those of any call.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from kdaverify.checks.calls.case import CallRuleCase
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.status import Status


def within_or_judged(case: CallRuleCase, *, backward: bool = False) -> list[Outcome]:
    """Outputs, or gradients, against proven bounds; those outside against the tolerances."""
    call, judge = case.direction(backward=backward)
    found = call()
    within = case.adapter.operator.within_bounds(
        case.adapter, case.inputs, found, case.given if backward else None
    )
    others = {name: x for name, x in found.items() if name not in within}
    passed = [
        Outcome(name, Status.PASS, f"{name}: every element within its proven error bound")
        for name in found
        if name in within
    ]
    return [*passed, *(judge(others) if others else [])]


_EXPOSES: Final = (
    "paths that several sizes choose together: splits of several KV heads, packs of one query each,"
    " programs that hold two groups of heads, whole blocks, tails of vectors"
)
_rule = partial(CallRule, exposes=_EXPOSES, combined=True, once=True)
RULES: Final = (
    _rule("combined-sizes",
          "every triple of sizes that kernels choose paths by gives right outputs",
          check=within_or_judged),
    _rule("combined-sizes-backward",
          "every pair of them, every triple from acceptance on, gives right gradients",
          check=partial(within_or_judged, backward=True), backward=True),
)  # fmt: skip
