"""Every set of inputs that are differentiated together: a kernel may have a variant for each.

Each input frozen alone, and each alone differentiated, are all states of any three inputs, but not
of four: a variant for frozen k and v, with g and beta live, left a term out of dg and was accepted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any, Final

from kdaverify.adapters.base import is_slow
from kdaverify.checks.calls.autograd import parts, where_alone
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome, rejected
from kdaverify.problems.covering_array import Row, covering_array

TAIL: Final = 2
"""Tokens behind two whole chunks, and of the last sequence of a pack: a chunk that is not full."""
UNDECLARED: Final = 16
"""Tokens of a recurrence between two states that it may keep for its backward."""
_LIVE, _FROZEN = "live", "frozen"
STRENGTH: Final = 4
"""Of the sets where a call is expensive: every four inputs in all sixteen states."""
MOST: Final = 6
"""Inputs whose 62 sets are all tested."""


def _subsets(case: CallRuleCase) -> list[Outcome]:
    left = others(_names(case), slow=is_slow(case.adapter))
    if not left:
        raise Unreachable("`frozen-inputs` has every set of its inputs")
    return _beside_all(case, left)


def _names(case: CallRuleCase) -> list[str]:
    """The inputs that have a gradient."""
    return [name for name in case.inputs.signature.gradients.values() if case.inputs.holds(name)]


def _beside_all(case: CallRuleCase, left: Sequence[tuple[str, ...]]) -> list[Outcome]:
    """The gradients of each set, beside those where all inputs require one."""
    outcomes = list[Outcome]()
    for found in where_alone(case, _names(case), left):
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


def _of_chunks(case: CallRuleCase) -> list[Outcome]:
    """Of a pack, and of a batch, whose first sequence has two chunks and a tail."""
    found, reasons, size = list[Outcome](), list[str](), _chunk(case)
    for fields in _several_chunks(2 * size + TAIL, packed=case.problem.lengths is not None):
        try:
            here = replace(case, problem=case.beside(**fields))
        except Unreachable as reason:
            reasons.append(str(reason))
            continue
        found += _beside_all(here, states_of_five(_names(here), slow=is_slow(case.adapter)))
        if rejected(found):
            return found
    if not found:
        raise Unreachable("; ".join(dict.fromkeys(reasons)))
    return found


def _several_chunks(tokens: int, *, packed: bool) -> Iterator[dict[str, Any]]:
    plain = {"B": 1, "H": 1, "HV": 1}
    if packed:
        yield {**plain, "lengths": (tokens, 0, TAIL), "T": tokens + TAIL}
    yield {**plain, "lengths": None, "T": tokens}


def _chunk(case: CallRuleCase) -> int:
    """Tokens of a chunk; of a recurrence, those that one may keep a state for."""
    contract = case.adapter.contract(case.problem.dtype)
    return contract.chunk_size if contract.form == "chunk" else UNDECLARED


def states_of_five(names: Sequence[str], *, slow: bool) -> list[tuple[str, ...]]:
    """Sets that hold every state of five inputs, or of all where there are fewer."""
    strength = STRENGTH - 1 if slow else STRENGTH + 1
    rows = covering_array(
        dict.fromkeys(names, (_LIVE, _FROZEN)),
        min(strength, len(names)),
        begun=[_row(names, names), _row(names, ())],
    )
    return [tuple(name for name in names if row[name] == _LIVE) for row in rows[2:]]


def _row(names: Sequence[str], live: Collection[str]) -> Row:
    return {name: _LIVE if name in live else _FROZEN for name in names}


RULES: Final = (
    CallRule("frozen-subsets", "the same of every set of inputs that need a gradient, of a handful"
             " of tokens", "a variant for one set of frozen inputs that leaves a term out of"
             " another's gradient", _subsets, sets=True, spare=False, inside=True, backward=True,
             costly=True),
)  # fmt: skip
OF_CHUNKS: Final = (
    CallRule("frozen-subsets-chunks", "an input has the same gradient over several chunks"
             " whichever others need none: every five inputs in all states",
             "a variant for one set of frozen inputs and more than one chunk", _of_chunks,
             sets=True, sequences=True, delta=True, spare=False, inside=True, backward=True,
             costly=True, once=True),
)  # fmt: skip
