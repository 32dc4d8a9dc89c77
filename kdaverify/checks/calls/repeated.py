"""The same call gives the same bits, however often it is made."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from kdaverify.checks.calls.bits import Judge, differing, same_bits
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.detection import excluded
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome


def _repeated(
    case: CallRuleCase,
    call: Callable[[CallRuleCase], Tensors],
    judge: Callable[[CallRuleCase], Judge],
) -> list[Outcome]:
    first = call(case)
    plain = {name: tensor.clone() for name, tensor in first.items()}
    for number in range(2, case.times + 1):
        found = call(case)
        wrong = differing(plain, found)
        if not wrong:
            continue
        if case.adapter.deterministic:
            return same_bits(plain, found, case.inputs, f"in call {number} of {case.times}")
        outcomes = judge(case)(found)
        if any(outcome.status.rejects for outcome in outcomes):
            return outcomes
    if not case.adapter.deterministic:
        return judge(case)(plain)
    return same_bits(
        plain, plain, case.inputs, f"in all of {case.times} calls: {excluded(case.times)}"
    )


def _repeated_at_real_size(
    case: CallRuleCase,
    call: Callable[[CallRuleCase], Tensors],
    judge: Callable[[CallRuleCase], Judge],
) -> list[Outcome]:
    # Results of other bits are compared with certified values, which take minutes a call at this
    # size.
    if not case.adapter.deterministic:
        raise Unreachable(
            "it declares deterministic=False: its calls are compared with certified values, at"
            " small sizes alone"
        )
    return _repeated(case, call, judge)


RULES = (
    CallRule(
        "repeated",
        "the same call gives the same bits, or right ones each time where the implementation"
        " declares deterministic=False",
        "races: reads before writes, missing waits and barriers, tiles of the call before (A8, H13,"
        " H20 to H27, O11, X6)",
        partial(_repeated, call=CallRuleCase.run, judge=lambda case: case.judged),
        size="tails",
        counted=True,
    ),
    CallRule(
        "repeated-step",
        "the same of the decode entry point",
        "the same in a decode kernel (O11)",
        partial(_repeated, call=CallRuleCase.step, judge=lambda case: case.judged),
        size="one",
        packed=False,
        sequences=True,
        counted=True,
    ),
    CallRule(
        "repeated-backward",
        "the same of all gradients",
        "the same in the backward, sums by atomic additions (L6)",
        partial(_repeated, call=CallRuleCase.back, judge=lambda case: case.judged_back),
        size="tails",
        spare=False,
        backward=True,
        counted=True,
        costly=True,
    ),
    CallRule(
        "repeated-real",
        "the same of a pack of 1,024 tokens and more, 8 heads, K = V = 64",
        "races among many blocks, and over more chunks than fit a pipeline (A8, H13, H20 to H27)",
        partial(_repeated_at_real_size, call=CallRuleCase.run, judge=lambda case: case.judged),
        size="real",
        counted=True,
        once=True,
        profile="acceptance",
    ),
    CallRule(
        "repeated-real-backward",
        "the same of all gradients, at that size",
        "the same in the backward, sums by atomic additions over many blocks (L6)",
        partial(
            _repeated_at_real_size, call=CallRuleCase.back, judge=lambda case: case.judged_back
        ),
        size="real",
        spare=False,
        backward=True,
        counted=True,
        once=True,
        costly=True,
        profile="acceptance",
    ),
)
