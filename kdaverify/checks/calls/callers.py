"""What a caller does before the backward: it edits tensors, takes another loss, scales it.

Autograd calls a backward with whatever loss there is, as often as there are losses. Outputs are the
caller's: what a backward needs of one it saves with `save_for_backward`, which notices an edit, or
in memory of its own. So are inputs: an optimizer steps, a state is overwritten by the next one.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.checks.calls.autograd import (
    RecordedCall,
    by_gradient,
    gradients_of_call,
    incoming,
    recorded,
    second_backward,
    unconverted,
)
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.execute import CallError, watched
from kdaverify.checks.gradients import handed
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.status import REFUSED, Status
from kdaverify.problems.cotangents import FAR

UNEVEN: Final = {**dict.fromkeys(("fp64", "fp32", "bf16"), -32), "fp16": -8}
"""Powers of two of faint rows beside ordinary ones, by format: what one factor for a whole sequence
brings into the range of fp16 is 0 there. A port that did so was accepted."""
REFUSAL: Final = re.compile(r"modified\s+(by an )?inplace")
"""What autograd says of an edited tensor that was saved, or is a view: nobody gets a wrong
gradient."""


def _edited(case: CallRuleCase) -> list[Outcome]:
    """One output a time: autograd may notice an edit of one, and not that of another."""
    wanted = unconverted(case)
    plain = gradients_of_call(case, recorded(case, wanted))
    found, refused = list[Outcome](), list[str]()
    for name in case.exposed:
        call = recorded(case, wanted)
        after = _gradients_without(case, call, call.outputs[name])
        if after is None:
            refused.append(name)
            continue
        said = f"after the caller has set {name} to 0"
        found += same_or_right(plain, after, case.judged_back, said)
    if not found:
        raise Unreachable(f"{REFUSED}edits of {', '.join(refused)} before the backward")
    return found


def _gradients_without(case: CallRuleCase, call: RecordedCall, edited: Tensor) -> Tensors | None:
    """The gradients of a call, one tensor of which is set to 0 before; None where autograd refuses.

    Raises:
        CallError: the backward fails in another way.
    """
    with torch.no_grad():
        edited.zero_()
    try:
        return gradients_of_call(case, call)
    except CallError as error:
        if not REFUSAL.search(error.message):
            raise
        return None


def _edited_inputs(case: CallRuleCase) -> list[Outcome]:
    """One input a time, of those that have a gradient: FLA's convolution keeps offsets where
    autograd does not see an edit, as do right kernels in its style.
    """
    wanted = unconverted(case)
    plain = gradients_of_call(case, recorded(case, wanted))
    found = list[Outcome]()
    for name in wanted:
        call = recorded(case, wanted)
        after = _gradients_without(case, call, call.leaves[name])
        if after is None:
            said = f"{name}: autograd refuses a backward after the caller has set it to 0"
            found.append(Outcome(name, Status.PASS, said))
            continue
        said = f"after the caller has set {name} to 0"
        found += same_or_right(plain, after, case.judged_back, said)
    return found


def _another_loss(case: CallRuleCase) -> list[Outcome]:
    """A backward under one loss, and one under another of the same graph."""
    call, loss = recorded(case, unconverted(case)), _other_loss(case)
    given = incoming(case, loss)
    fresh = recorded(case, unconverted(case))
    plain = by_gradient(case, watched(lambda: fresh.gradients(given), "call"))
    watched(lambda: call.gradients(incoming(case), keep=True), "call")
    found = by_gradient(case, second_backward(call, given))
    judge = partial(case.judged_back, given=loss)
    return same_or_right(plain, found, judge, "under another loss, in a second backward")


def _other_loss(case: CallRuleCase) -> Any:
    """That of another seed."""
    other, operator = case.problem.replace(seed=case.problem.seed + 1), case.adapter.operator
    followed = case.adapter.differentiates(case.problem)
    given = operator.loss(other, followed, operator.whole(followed), 0)
    return handed(case.adapter, case.problem, given)


def _scaled(case: CallRuleCase) -> list[Outcome]:
    plain, given, found = case.back(), case.given, list[Outcome]()
    for exponent in FAR[case.problem.dtype]:
        factor = 2.0**exponent
        loss = case.loss_of({name: dy * factor for name, dy in given.items()})
        wanted = {name: dx * factor for name, dx in plain.items()}
        judge = partial(case.judged_back, given=loss)
        said = f"under a loss times 2^{exponent}, but for that factor,"
        found += same_or_right(wanted, case.back(loss), judge, said)
    return found


def _cancelling(case: CallRuleCase) -> list[Outcome]:
    """One output a time, the cotangents of all others 0."""
    given = case.given
    zeros, found = {name: torch.zeros_like(dy) for name, dy in given.items()}, list[Outcome]()
    for name, dy in given.items():
        loss = case.loss_of({**zeros, name: _in_pairs(dy)})
        found += case.judged_back(case.back(loss), loss)
    return found


def _in_pairs(dy: Tensor) -> Tensor:
    """1 and -1 in turn where a loss depends on an element, whose sum is exactly 0 in whatever
    order; an odd last one is 0.
    """
    given, found = dy.flatten(), torch.zeros_like(dy).flatten()
    first, second = given.nonzero().flatten()[: int(given.count_nonzero()) // 2 * 2].view(-1, 2).T
    found[first] = torch.where(given[first] >= 0, 1.0, -1.0).to(dy.dtype)
    found[second] = -found[first]
    return found.view_as(dy)


def _uneven(case: CallRuleCase) -> list[Outcome]:
    """The later half of every axis but the last at a small part of the loss."""
    factor = 2.0 ** UNEVEN[case.problem.dtype]
    loss = case.loss_of({name: _with_faint_rows(dy, factor) for name, dy in case.given.items()})
    return case.judged_back(case.back(loss), loss)


def _with_faint_rows(dy: Tensor, factor: float) -> Tensor:
    factors = torch.ones_like(dy)
    for axis, size in enumerate(dy.shape[:-1]):
        factors.narrow(axis, -(-size // 2), size // 2).fill_(factor)
    return dy * factors


_rule = partial(CallRule, packed=False, backward=True, spare=False)
RULES: Final = (
    _rule("edited-outputs-backward",
          "an output that the caller overwrites before the backward changes no gradient, or"
          " autograd refuses", "outputs kept for the backward where autograd does not see them",
          _edited, inside=True, costly=True),
    _rule("cotangent-other",
          "a second backward of the same call under another loss gives the gradients of that",
          "what the first backward made of its loss kept for the second", _another_loss,
          inside=True, costly=True),
    _rule("cotangent-scaled",
          "a loss times a power of two, as of a mean over tokens, scales gradients by it",
          "incoming gradients in the range of fp16, thresholds", _scaled),
)  # fmt: skip
CANCELLING: Final = (
    _rule("cotangent-cancelling",
          "gradients are exact under a loss on one output whose cotangent sums to exactly 0",
          "chunks or sequences left out of a backward by a sum of the incoming gradient",
          _cancelling, costly=True, once=True),
)  # fmt: skip
EDITED: Final = (
    _rule("edited-inputs-backward",
          "an input that the caller overwrites before the backward changes no gradient, or autograd"
          " refuses", "inputs kept for the backward where autograd does not see them",
          _edited_inputs, inside=True, costly=True, once=True),
)  # fmt: skip
UNEVEN_ROWS: Final = (
    _rule("cotangent-uneven",
          "gradients are exact where rows of a loss differ by 2^32 (fp16: 2^8)",
          "incoming gradients scaled by one factor into a range of 16 or 8 bits", _uneven,
          delta=True, size="tails"),
)  # fmt: skip
