"""A call that differs from many calls of one shape before it.

A launch that was made often enough is captured, its scalars and its offsets included, or is handed
to another executor. Rules of calls in turns make two or three: a decode step that was captured
after 32 calls, with the scale of that time, was accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from kdaverify.adapters.base import is_interpreted
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.lifetimes import MANY
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome, first_wrong_or_all, placed

LENGTHS: Final = ("T", "s_k")
"""Fields of which a call may have one more: the first that a problem has."""


def _after_many(case: CallRuleCase, *, decode: bool = False) -> list[Outcome]:
    """The outcomes of the first call that is wrong, or else of all."""
    if is_interpreted(case.adapter):
        raise Unreachable(f"an interpreter would take minutes over {MANY} calls")
    if decode:
        case.takes_one_token()
    others = [*_others(case, decode=decode)]
    call = _stepped if decode else _run
    for _ in range(MANY):
        call(case)
    return first_wrong_or_all(
        placed(_judged(one, call), f"\n  after {MANY} calls that differ: {case.problem.describe()}")
        for one in (*others, case)
    )


def _judged(case: CallRuleCase, call: Callable[[CallRuleCase], Tensors]) -> list[Outcome]:
    # the inputs are named: what is judged outside the kernel's process may be of another problem
    return case.judged(call(case), case.inputs)


def _run(case: CallRuleCase) -> Tensors:
    with torch.no_grad():
        return case.run()


def _stepped(case: CallRuleCase) -> Tensors:
    with torch.no_grad():
        return case.step()


def _others(case: CallRuleCase, *, decode: bool) -> Iterator[CallRuleCase]:
    """Calls that differ in one thing each, of those that the kernel takes.

    Raises:
        Unreachable: it takes none.
    """
    reasons, none = list[str](), True
    for change in _changes(case, decode=decode):
        try:
            other = case.beside(**change)
        except Unreachable as reason:
            reasons.append(str(reason))
            continue
        if other != case.problem:
            none = False
            yield replace(case, problem=other)
    if none:
        raise Unreachable("; ".join(dict.fromkeys(reasons)) or "no call of it differs in one thing")


def _changes(case: CallRuleCase, *, decode: bool) -> Iterator[Mapping[str, Any]]:
    """Of the scale, the state, the values, the keys, the offsets and the length."""
    problem, operator = case.problem, case.adapter.operator
    fields = {*type(problem).model_fields}
    yield operator.other_scale(problem) or {}
    if "state" in fields:
        yield {"state": "random" if problem.state == "absent" else "absent"}
    yield {"seed": problem.seed + 1}
    if decode:
        yield {"B": problem.B + 1}
        return
    yield from operator.other_keys(problem).values()
    if hasattr(problem, "lengths"):
        yield operator.other_offsets(problem) or {}
    yield next(({name: getattr(problem, name) + 1} for name in LENGTHS if name in fields), {})


_rule = partial(CallRule, spare=False, costly=True, inside=True, once=True)
RULES: Final = (
    _rule("after-many", f"a call that differs from {MANY} before it, all under no_grad, in its"
          " scale, state, values, keys, offsets or length returns what it does alone",
          "launches captured after many calls of a shape, with what they were called with",
          _after_many),
    _rule("after-many-step", "the same of the decode entry point, by scale, state, values and"
          " number of sequences", "the same of a decode step", partial(_after_many, decode=True),
          size="one", packed=False, sequences=True, decode=True),
)  # fmt: skip
