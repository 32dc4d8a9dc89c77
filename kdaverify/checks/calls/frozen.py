"""Every set of inputs that are differentiated together: a kernel may have a variant for each.

Each input frozen alone, and each alone differentiated, are all states of any three inputs, but not
of four: a variant for frozen k and v, with g and beta live, left a term out of dg and was accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from typing import Final

from kdaverify.adapters.base import is_slow
from kdaverify.checks.calls.autograd import parts, where_alone
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome, rejected
from kdaverify.problems.covering_array import Row, covering_array

_LIVE, _FROZEN = "live", "frozen"
STRENGTH: Final = 4
"""Of the sets where a call is expensive: every four inputs in all sixteen states."""
MOST: Final = 6
"""Inputs whose 62 sets are all tested."""


def _subsets(case: CallRuleCase) -> list[Outcome]:
    names = [name for name in case.inputs.signature.gradients.values() if case.inputs.holds(name)]
    left = others(names, slow=is_slow(case.adapter))
    if not left:
        raise Unreachable("`frozen-inputs` has every set of its inputs")
    outcomes = list[Outcome]()
    for found in where_alone(case, names, left):
        outcomes += found
        if rejected(found):
            break
    return outcomes


def others(names: Sequence[str], *, slow: bool) -> list[tuple[str, ...]]:
    """The sets of inputs that `frozen-inputs` leaves out: all, or of many or slow calls those that
    hold every state of four.
    """
    known = [frozenset(part) for part in (names, *parts(names))]
    if not slow and len(names) <= MOST:
        sets = (part for size in range(1, len(names)) for part in combinations(names, size))
        return [part for part in sets if frozenset(part) not in known]
    if len(names) < STRENGTH:
        return []
    begun = [_row(names, part) for part in (*known, ())]
    rows = covering_array(dict.fromkeys(names, (_LIVE, _FROZEN)), STRENGTH, begun=begun)
    return [tuple(name for name in names if row[name] == _LIVE) for row in rows[len(begun) :]]


def _row(names: Sequence[str], live: Collection[str]) -> Row:
    return {name: _LIVE if name in live else _FROZEN for name in names}


RULES: Final = (
    CallRule("frozen-subsets", "the same of every set of inputs that need a gradient, of a handful"
             " of tokens", "a variant for one set of frozen inputs that leaves a term out of"
             " another's gradient", _subsets, sets=True, spare=False, inside=True, backward=True,
             costly=True),
)  # fmt: skip
