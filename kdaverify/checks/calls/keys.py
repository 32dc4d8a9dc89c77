"""A call does not depend on which keys the rows of a call before it of the same shape saw."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields, replace
from functools import partial
from typing import Final

from kdaverify.checks.calls.bits import same_bits, same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.lifetimes import edited
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome, rejected
from kdaverify.checks.status import Status
from oracles.signature import TensorCall


def _in_turns(case: CallRuleCase, *, backward: bool = False) -> list[Outcome]:
    """The call again after each of the others; all of them are judged, as what a kernel kept may
    be of a call before, and what a row without keys has may be of another row.
    """
    call, judge = case.direction(backward=backward)
    before = {name: tensor.clone() for name, tensor in call().items()}
    skips, found = list[Outcome](), list[Outcome]()
    for said, other in case.other_keys().items():
        call_other, judge_other = other.direction(backward=backward)
        between, again = judge_other(call_other()), call()
        if rejected(between):
            return between
        skips += [one for one in between if one.status is Status.SKIP]
        words = f"after a call that differs in {said}"
        found += (
            same_bits(before, again, case.inputs, words)
            if case.adapter.deterministic
            else same_or_right(before, again, judge, words)
        )
    judged = judge(before)
    return judged if rejected(judged) else [*skips, *found]


def _other_tensors(case: CallRuleCase) -> TensorCall:
    """The first that differs in tensors alone."""
    names = [one.name for one in fields(case.inputs) if one.name not in case.inputs.tensors()]
    for other in case.other_keys().values():
        if all(getattr(other.inputs, name) == getattr(case.inputs, name) for name in names):
            return other.inputs.copied()
    raise Unreachable("rows of calls of one shape see other keys under another mask alone")


def _edited(case: CallRuleCase) -> list[Outcome]:
    return edited(case, _other_tensors(case), nullcontext)


def _grown(case: CallRuleCase) -> list[Outcome]:
    """Every request has one key more than in the call before, and other rows in its pages."""
    operator = case.adapter.operator
    case = replace(case, problem=case.beside(**operator.growing))
    earlier = operator.one_key_fewer(case.inputs)
    if earlier is None:
        raise Unreachable("its calls do not go on from each other")
    rows = {n: -x for n, x in earlier.tensors().items() if x.is_floating_point()}
    return edited(case, case.inputs, nullcontext, earlier=replace(earlier, **rows))


_EXPOSES: Final = (
    "schedules kept by sums or maxima of lengths, rows of a work space that nothing is written to,"
    " masks kept by shape (W1, W2, C10)"
)
_rule = partial(CallRule, size="keys", keys=True, costly=True)
RULES: Final = (
    _rule("alternating-keys", "calls of one shape whose rows see other keys, in turns: permuted"
          " lengths, others of one hash, other lists, another mask", _EXPOSES, _in_turns),
    _rule("alternating-keys-backward", "the same of all gradients", _EXPOSES,
          partial(_in_turns, backward=True), spare=False, backward=True),
    _rule("edited-keys", "lengths and lists edited in place are new ones",
          "a schedule kept for a tensor of lengths that has changed since", _edited,
          channel="objects"),
)  # fmt: skip
GROWN: Final = (
    _rule("grown-keys", "a request that has one key more than in the call before is read again"
          " where its pages hold other rows by now", "rows kept of a request that goes on",
          _grown, channel="objects", once=True),
)  # fmt: skip
OF_SPLITS: Final = (
    _rule("alternating-splits", "the same over a thousand keys: a row has fewer splits than in the"
          " call before",
          "partial states in a work space that a call with more splits left there, merged with its"
          " own", _in_turns, size="long", once=True),
)  # fmt: skip
"""A port whose splits of 256 keys were kept by shape was accepted: calls of 130 keys have one."""
