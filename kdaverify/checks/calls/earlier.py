"""A call after others that leave something behind, or a backward from a loss of some tokens alone:
what happens between the calls of a real program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import is_interpreted, is_slow, values_of
from kdaverify.checks.calls.autograd import (
    RecordedCall,
    gradients_of_call,
    recorded,
    unconverted,
)
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.execute import CallError, watched
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.status import Status
from oracles.autograd import Backward, ForwardOnlyError, after_a_micro_batch, evaluated_before
from oracles.signature import Role

HEADS: Final = ("B", "H", "HV", "h_kv")
LENGTHS: Final = ("T", "s_k")
FIRST: Final = {29: torch.inference_mode, 31: torch.no_grad}
"""The mode of the first call, by how many tokens more it has: no other rule has had the shape."""
MASKED: Final = 65
"""Tokens before and behind those of a loss: a chunk of 64, and one more."""
BETWEEN: Final = 127
"""Tokens left out in the middle of it, as a user's turn is: a whole chunk of 64, wherever they
begin. A port that passed chunks without a loss over there was accepted."""
LOSS: Final = 4
"""Tokens of each part of the loss. Chosen: fewer than a chunk, so that no chunk is whole in it."""
LONG: Final = 2100
"""Tokens of a call whose work space is kept: one for sequences from 2,048 on was accepted."""
LEFT_OUT: Final = (MASKED, BETWEEN, MASKED)
MICRO_BATCHES: Final[dict[Backward, str]] = {
    "grad": "by torch.autograd.grad where `.grad` has the gradients of an earlier micro-batch",
    "backward": "by backward() of two micro-batches, half of their sum in `.grad`,",
}


def _after_refused(case: CallRuleCase) -> list[Outcome]:
    """One state too many is safe for a kernel that does not look: it reads what is there."""
    if not any(case.inputs.holds(name) for name in case.inputs.signature.names(Role.STATE)):
        raise Unreachable("it takes no initial state")
    plain = {name: tensor.clone() for name, tensor in case.run().items()}
    try:
        other: Any = case.beside(**case.other_offsets()).inputs()
    except Unreachable:
        other = case.inputs
    try:
        watched(lambda: case.adapter.forward(_with_a_state_more(other.copied())), "call")
    except CallError as fault:
        if fault.status.takes_process:
            raise Unreachable("a call that it refuses ends its process") from None
    said = "after a call with one initial state too many"
    return same_or_right(plain, case.run(), case.judged, said)


def _with_a_state_more(x: Any) -> Any:
    for name, state in x.signature.tensors(x, Role.STATE).items():
        # past the constructor, which refuses it as a kernel should
        object.__setattr__(x, name, torch.cat((state, state[-1:])))
    return x


def _evaluated_before(case: CallRuleCase) -> list[Outcome]:
    plain = {name: dx.clone() for name, dx in case.back().items()}
    with evaluated_before():
        found = case.back()
    said = "where a call under no_grad had the same tensors before"
    return same_or_right(plain, found, case.judged_back, said)


def _micro_batches(case: CallRuleCase) -> list[Outcome]:
    """A first call of the leaves has no `.grad`: no other rule, nor any panel, makes a second."""
    plain, found = {name: dx.clone() for name, dx in case.back().items()}, list[Outcome]()
    for backward, said in MICRO_BATCHES.items():
        with after_a_micro_batch(backward):
            second = case.back()
        found += same_or_right(plain, second, case.judged_back, said)
    return found


def _evaluated_first(case: CallRuleCase) -> list[Outcome]:
    """A program that validates before it trains."""
    # before any call of the shape: whether it has a graph at all
    case.back()
    found = list[Outcome]()
    for more, mode in [*FIRST.items()][: 1 if is_slow(case.adapter) else None]:
        first = replace(case, problem=case.beside(**_of_one_head(case), **_longer(case, more)))
        found += _after_a_first_call(first, mode)
    return found


def _after_a_first_call(
    case: CallRuleCase, mode: Callable[[], AbstractContextManager[Any]]
) -> list[Outcome]:
    # made outside: those of inference mode have no gradient
    x = case.inputs
    with mode():
        case.run()
    try:
        return case.judged_back(case.back(), case.cotangents, x)
    except ForwardOnlyError as error:
        said = f"{error}, after a first call of its shape under {mode.__name__}"
        return [Outcome("call", Status.ERROR, said)]


def _longer(case: CallRuleCase, more: int) -> dict[str, int]:
    fields = {*type(case.problem).model_fields}
    return {name: getattr(case.problem, name) + more for name in LENGTHS if name in fields}


def _sharing(case: CallRuleCase) -> list[Outcome]:
    """What is kept by the address of one tensor, or of all but one, is overwritten by a call that
    shares them and differs in all others.
    """
    names = unconverted(case)
    plain = gradients_of_call(case, recorded(case, names))
    first = recorded(case, names)
    other = replace(case, problem=case.problem.replace(seed=case.problem.seed + 1))
    # held until the end: memory of a graph that is gone may be used again
    _later = [
        recorded(other, names, **{name: first.leaves[name] for name in shared})
        for shared in _shared(first)
    ]
    found = gradients_of_call(case, first)
    said = "where later calls shared some of its tensors"
    return same_or_right(plain, found, case.judged_back, said)


def _shared(call: RecordedCall) -> Iterator[tuple[str, ...]]:
    names = (*call.leaves,)
    if len(names) < 2:
        raise Unreachable("it takes fewer than two tensors as they are")
    seen = {(name,) for name in names} | {tuple(n for n in names if n != one) for one in names}
    yield from sorted(seen)


def _masked(case: CallRuleCase) -> list[Outcome]:
    tokens = sum(LEFT_OUT) + LOSS * (len(LEFT_OUT) - 1)
    long = replace(case, problem=case.beside(**_of_one_head(case), T=tokens))
    if long.problem.packed or tokens > long.problem.T:
        raise Unreachable(f"it takes no sequence of {tokens} tokens")
    loss = _loss_of_some(long)
    return long.judged_back(long.back(loss), loss)


def _one_loss(case: CallRuleCase) -> list[Outcome]:
    """Absent gradients of an output are 0, also where an earlier backward had them."""
    long = replace(case, problem=case.beside(**_of_one_head(case), T=LONG))
    if is_interpreted(case.adapter) or long.problem.T < LONG:
        raise Unreachable(f"it takes no sequence of {LONG} tokens, or minutes for one")
    if len(long.given) < 2:
        raise Unreachable("a loss depends on one output")
    found = list[Outcome]()
    for name, dy in long.given.items():
        loss = long.loss_of({name: dy})
        plain = {n: dx.clone() for n, dx in long.back(loss).items()}
        long.back()
        judge = partial(long.judged_back, given=loss)
        said = f"after a backward that had more than {name}"
        found += same_or_right(plain, long.back(loss), judge, said)
    return found


def _of_one_head(case: CallRuleCase) -> dict[str, int]:
    return {name: 1 for name in HEADS if name in type(case.problem).model_fields}


def _loss_of_some(case: CallRuleCase) -> Any:
    """The case's loss with cotangents of exactly 0 at all tokens but some."""
    signature, given = case.inputs.signature, dict[str, Tensor]()
    for name, dy in values_of(case.cotangents).items():
        if dy is None:
            continue
        given[name] = dy
        if not signature.is_state(signature.cotangents[name]):
            given[name] = torch.zeros_like(dy)
            end = 0
            for left_out in LEFT_OUT[:-1]:
                first, end = end + left_out, end + left_out + LOSS
                given[name][:, first:end] = dy[:, first:end]
    return case.loss_of(given)


_rule = partial(CallRule, spare=False, costly=True)
RULES: Final = (
    _rule("after-refused", "a call after one that is refused, for one state too many, returns what"
          " it does alone", "plans, offsets or flags that a call which raises leaves behind",
          _after_refused, sequences=True, states=True, inside=True),
    _rule("evaluated-before", "the gradients of a call are the same where a call under no_grad had"
          " its tensors before",
          "activations kept by their tensors, without a graph where they were made without one",
          _evaluated_before, inside=True, backward=True),
    _rule("shared-forwards", "the gradients of a call do not depend on later calls that share some"
          " of its tensors", "what the backward needs, kept by the address of one tensor",
          _sharing, size="tails", inside=True, backward=True),
    _rule("masked-loss-backward", f"gradients are exact where the loss leaves out the first"
          f" {MASKED} tokens of a sequence, {BETWEEN} in its middle, and the last {MASKED}",
          "a backward that begins at the first token of the loss, ends at its last, or passes over"
          " chunks without one", _masked,
          size="tails", packed=False, sequences=True, states=True, backward=True, once=True),
)  # fmt: skip
EVALUATED_FIRST: Final = (
    _rule("evaluated-first", "gradients are exact where the first call of a shape is made in"
          " inference mode, or under no_grad",
          "buffers made for a shape by its first call, which no graph takes, and paths chosen then",
          _evaluated_first, packed=False, inside=True, backward=True, once=True),
)  # fmt: skip
MICRO: Final = (
    _rule("micro-batches", "gradients are the same where inputs have a `.grad` of an earlier"
          " micro-batch, and backward() adds them to it once",
          "a gradient that is added to `.grad` by the kernel, and once more by autograd",
          _micro_batches, packed=False, inside=True, backward=True, once=True),
)  # fmt: skip
ONE_LOSS: Final = (
    _rule("cotangent-alone", f"gradients of a loss on one output, of {LONG:,} tokens, do not depend"
          " on an earlier backward of a loss on all",
          "a gradient of the state that is left in a work space", _one_loss, size="tails",
          packed=False, sequences=True, states=True, backward=True, once=True),
)  # fmt: skip
