"""A backward is that of its own call, whatever was called since."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise, repeat
from typing import Any, Final

from kdaverify.adapters.base import is_slow
from kdaverify.checks.calls.autograd import gradients_of_call, recorded, unconverted
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome

PACKS: Final = 17
"""Later packs, no two of the same offsets: one more than a ring of 16 tables of chunks holds. A
kernel that kept the offsets of the latest call in a variable of its module, and read them in its
backward, was accepted."""
WAITING: Final = 129
"""Graphs that wait for their backward: more than a ring of 96 or 128 buffers holds. A norm that
kept 1 / rms in one of 96 for each shape was accepted."""
FEW: Final = 2
"""Of kernels whose calls take a second."""


def _two_forwards(case: CallRuleCase) -> list[Outcome]:
    """A training step calls a kernel once a layer, all in one shape, before the first backward."""
    other = replace(case, problem=case.problem.replace(**_other_numbers(case)))
    later = (other, *_under_other_options(case))
    return _despite(case, later, "where other calls of the shape came between forward and backward")


def _despite(case: CallRuleCase, later: Iterable[CallRuleCase], said: str) -> list[Outcome]:
    """The gradients of a call, with the forwards of others between it and its backward."""
    names = unconverted(case)
    plain = gradients_of_call(case, recorded(case, names))
    first = recorded(case, names)
    # held until the end: memory of a graph that is gone may be used again
    _waiting = [recorded(each, names) for each in later]
    return same_or_right(plain, gradients_of_call(case, first), case.judged_back, said)


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


def _many_forwards(case: CallRuleCase) -> list[Outcome]:
    """A deep model calls a kernel once a layer before the first backward."""
    other = replace(case, problem=case.beside(**_other_numbers(case)))
    count = FEW if is_slow(case.adapter) else WAITING
    said = f"where {count} calls of the shape came between forward and backward"
    return _despite(case, repeat(other, count), said)


def _two_packs(case: CallRuleCase) -> list[Outcome]:
    """Programs train on packs, whose offsets differ in every call; layers share them."""
    later = _with_other_offsets(case, case.other_offsets())
    return _despite(case, later, "where packs with other offsets came between forward and backward")


def _with_other_offsets(case: CallRuleCase, lengths: dict[str, Any]) -> Iterator[CallRuleCase]:
    for n in range(FEW if is_slow(case.adapter) else PACKS):
        fields = {name: _shifted(own, n) for name, own in lengths.items()}
        try:
            yield replace(case, problem=case.beside(**fields, **_other_numbers(case)))
        except Unreachable:
            continue


def _shifted(lengths: Sequence[int], by: int) -> tuple[int, ...]:
    """Lengths of the same sum whose ends lie so many tokens further on, modulo all of them."""
    *ends, total = accumulate(lengths)
    cuts = sorted((end + by) % (total + 1) for end in ends)
    return tuple(end - first for first, end in pairwise((0, *cuts, total)))


RULES: Final = (
    CallRule("two-forwards",
             "the gradients of a call do not depend on later calls of its shape, of any scale",
             "what the backward needs, kept by shape or in one buffer of all calls", _two_forwards,
             size="tails", spare=False, inside=True, backward=True, costly=True),
)  # fmt: skip
OF_LAYERS: Final = (
    CallRule("many-forwards-backward",
             f"the gradients of a call do not depend on {WAITING} later calls of its shape",
             "what the backward needs, in a ring of buffers", _many_forwards, size="tiny",
             spare=False, inside=True, backward=True, costly=True, once=True),
)  # fmt: skip
OF_PACKS: Final = (
    CallRule("two-packs",
             f"the gradients of a pack do not depend on {PACKS} later packs with other offsets",
             "offsets or tables of chunks that the backward reads of the latest call, or in a ring",
             _two_packs, size="tails", sequences=True, offsets=True, spare=False, inside=True,
             backward=True, costly=True, once=True),
)  # fmt: skip
