"""Sizes that a kernel takes beside the usual ones, one after another.

The panel has a few sizes of each axis. A decode kernel that divides by the page size in fp32 is
right for pages of 1, 16, 64 and 176 tokens and wrong for 41; one tile of 64 rope columns serves
every width but those above; splits of 384 keys are one too many where they divide a length. All
were accepted. As small problems, within the proven bound of every element, each size costs little.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kdaverify.adapters.base import is_slow
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.combined_sizes import within_or_judged
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.execute import CallError
from kdaverify.checks.outcome import Outcome, declined, of_failed_call, placed, rejected
from kdaverify.checks.status import Status

SLOW: Final = 16
"""A kernel that is compiled for every shape, or interpreted, has one size of so many."""


def _in_turn(case: CallRuleCase, *, backward: bool = False) -> list[Outcome]:
    """The outcomes of the first size that is wrong; else the last, and sizes that it declines."""
    last, refusals = list[Outcome](), dict[str, Outcome]()
    for problem in _problems(case, backward=backward):
        found = _of_size(replace(case, problem=problem), backward=backward)
        if rejected(found):
            return placed(found, f"\n  of {problem.stem}")
        refused = [one for one in found if one.status is Status.SKIP]
        refusals |= {one.message: one for one in refused}
        last = last if refused else found
    return [*last, *refusals.values()]


def _problems(case: CallRuleCase, *, backward: bool) -> Sequence[Any]:
    operator, dtype = case.adapter.operator, case.problem.dtype
    found = operator.sizes_in_turn(case.adapter, dtype, backward=backward)
    if not found:
        raise Unreachable("it takes none of these sizes")
    return found[:: SLOW if is_slow(case.adapter) else 1]


def _of_size(case: CallRuleCase, *, backward: bool) -> list[Outcome]:
    """A size may be declined like a whole call, and others are still tested."""
    try:
        return within_or_judged(case, backward=backward)
    except CallError as fault:
        return declined(of_failed_call(case.adapter, case.inputs, fault))


_EXPOSES: Final = (
    "tiles of channels that divide some widths alone, one tile for rows of any width, page numbers"
    " by a reciprocal, a split too many or too few where blocks divide a length"
)
_rule = partial(CallRule, exposes=_EXPOSES, in_turn=True, once=True, costly=True)
RULES: Final = (
    _rule("sizes-in-turn",
          "rows of keys and of values of other widths, pages of any size, and requests as long as"
          " blocks and splits divide give right outputs", check=_in_turn),
    _rule("sizes-in-turn-backward", "the same of all gradients, but for pages",
          check=partial(_in_turn, backward=True), backward=True),
)  # fmt: skip
