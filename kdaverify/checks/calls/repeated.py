"""The same call gives the same bits, however often it is made, the first time too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

import torch

from kdaverify.checks.calls.bits import Judge, differing, same_bits, same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome, rejected

THREADS: Final = 3
"""That divide few numbers of heads, rows or sequences. A port that divided heads among them by
floor was accepted where sessions have one."""
TOKENS: Final = 13
"""Beside those of a case: more than any other rule requests, so that the shape is new."""
# Of the sentence that a pass carries; it decides nothing.
CONFIDENCE: Final = 0.95


def detectable_share(calls: int, confidence: float = CONFIDENCE) -> float:
    """The least share of calls that a race must change to be detected with `confidence`.

    Math: a race that changes each call independently with probability p leaves n calls equal with
    probability (1 - p)^n, so it is
        detected with probability 1 - (1 - p)^n, and that is `confidence` at p = 1 - (1 -
        confidence)^(1 / n).
    Args:
        calls: n, how many calls are compared.
    """
    return 1 - (1 - confidence) ** (1 / calls)


def excluded(calls: int) -> str:
    """The phrase for a verdict on `calls` equal calls."""
    return (
        f"a race that changes {detectable_share(calls):.2g} of the calls is detected with"
        f" probability {CONFIDENCE:.0%}"
    )


def _repeated(case: CallRuleCase, *, backward: bool = False) -> list[Outcome]:
    return _equal_calls(case, *case.direction(backward=backward))


def _repeated_step(case: CallRuleCase) -> list[Outcome]:
    return _equal_calls(case, case.step, case.judged)


def _of_threads(case: CallRuleCase) -> list[Outcome]:
    """Sums may be taken in another order, so that other bits than before are judged."""
    plain = {name: tensor.clone() for name, tensor in case.run().items()}
    own = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        found = {name: tensor.clone() for name, tensor in case.run().items()}
    finally:
        torch.set_num_threads(own)
    return same_or_right(plain, found, case.judged, f"with {THREADS} threads of torch")


def _equal_calls(case: CallRuleCase, call: Callable[[], Tensors], judge: Judge) -> list[Outcome]:
    first = call()
    plain = {name: tensor.clone() for name, tensor in first.items()}
    for number in range(2, case.times + 1):
        found = call()
        wrong = differing(plain, found)
        if not wrong:
            continue
        if case.adapter.deterministic:
            return same_bits(plain, found, case.inputs, f"in call {number} of {case.times}")
        outcomes = judge(found)
        if rejected(outcomes):
            return outcomes
    if not case.adapter.deterministic:
        return judge(plain)
    return same_bits(
        plain, plain, case.inputs, f"in all of {case.times} calls: {excluded(case.times)}"
    )


def _repeated_at_real_size(case: CallRuleCase, *, backward: bool = False) -> list[Outcome]:
    # Results of other bits are compared with certified values, which take minutes a call at this
    # size.
    if not case.adapter.deterministic:
        raise Unreachable(
            "it declares deterministic=False: its calls are compared with certified values, at"
            " small sizes alone"
        )
    return _repeated(case, backward=backward)


def _of_a_shape(case: CallRuleCase) -> list[Outcome]:
    return _twice(
        replace(case, problem=case.beside(T=case.problem.T + TOKENS)),
        "after the first call of this shape",
    )


def _after_start(case: CallRuleCase) -> list[Outcome]:
    if not case.adapter.isolated:
        raise Unreachable("it runs in this process, which has called it before; say --isolate")
    case.adapter.end()
    return _twice(case, "after the first call of its process")


def _twice(case: CallRuleCase, said: str) -> list[Outcome]:
    first = {name: tensor.clone() for name, tensor in case.run().items()}
    return case.repeats(first, case.run(), said)


_rule = partial(CallRule, size="tails", counted=True)
_real = partial(_rule, size="real", once=True, profile="acceptance")
RULES = (
    _rule("repeated", "the same call gives the same bits, or right ones each time where the"
          " implementation declares deterministic=False",
          "races: reads before writes, missing waits and barriers, tiles of the call before (A8,"
          " H13, H20 to H27, O11, X6)", _repeated),
    _rule("repeated-step", "the same of the decode entry point",
          "the same in a decode kernel (O11)", _repeated_step, size="one", packed=False,
          sequences=True),
    _rule("repeated-backward", "the same of all gradients",
          "the same in the backward, sums by atomic additions (L6)",
          partial(_repeated, backward=True), spare=False, backward=True, costly=True),
    _real("repeated-real", "the same of a pack of 1,024 tokens and more, 8 heads, K = V = 64",
          "races among many blocks, and over more chunks than fit a pipeline (A8, H13, H20 to"
          " H27)", _repeated_at_real_size),
    _real("repeated-real-backward", "the same of all gradients, at that size",
          "the same in the backward, sums by atomic additions over many blocks (L6)",
          partial(_repeated_at_real_size, backward=True), spare=False, backward=True, costly=True),
)  # fmt: skip
OF_THREADS: Final = (
    CallRule("threads",
             f"a call returns the same with {THREADS} threads of torch, but for the order of sums",
             "heads or rows divided among threads by floor", _of_threads, spare=False, inside=True,
             costly=True, once=True),
)  # fmt: skip
_TUNED = "tuning runs that update what they are given, caches filled wrongly (S28)"
OF_FIRST_CALLS: Final = (
    CallRule("first-of-shape", "the first call of a shape gives the bits of the next", _TUNED,
             _of_a_shape, sequences=True),
    # Another process for every case: on a GPU that takes a quarter of a minute.
    CallRule("first-after-start", "the first call of a process gives the bits of the next",
             _TUNED, _after_start, once=True, profile="acceptance"),
)  # fmt: skip
