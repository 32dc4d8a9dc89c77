"""Two calls in one graph: the state of the first enters the second, as in training on long texts.

The gradients of the first call's inputs are those of that call alone, given what the second call's
initial state has. So they are compared with it: bit by bit, or with its exact values. A kernel that
detached every state with a graph behind it was accepted, since all other states were leaves.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from kdaverify.checks.calls.autograd import (
    RecordedCall,
    by_gradient,
    incoming,
    recorded,
    unconverted,
)
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.execute import watched
from kdaverify.checks.gradients import handed
from kdaverify.checks.outcome import Outcome
from oracles.signature import Role


def one_state(case: CallRuleCase) -> tuple[str, str]:
    """The names of the given and of the returned state.

    Raises:
        Unreachable: the call has not both.
    """
    signature = case.inputs.signature
    given = [name for name in signature.names(Role.STATE) if case.inputs.holds(name)]
    returned = [name for name in case.exposed if signature.is_state(name)]
    if len(given) != 1 or len(returned) != 1:
        raise Unreachable("it does not take and return one state")
    return given[0], returned[0]


def _chained(case: CallRuleCase) -> list[Outcome]:
    given, returned = one_state(case)
    names, loss = unconverted(case), incoming(case)
    first = recorded(case, names)
    state = first.outputs[returned]
    if not state.requires_grad:
        raise Unreachable("its final state carries no graph")
    before = getattr(case.inputs, given)
    with torch.inference_mode(mode=False), torch.enable_grad():
        entered = state.to(before.device, before.dtype)
    found = _gradients_of_both(case, first, recorded(case, names, **{given: entered}))
    resumed = replace(case.inputs, **{given: entered.detach().clone()})
    second = recorded(case, {*names, given}, resumed)
    dS = watched(lambda: second.gradients(loss), "call")[given]
    alone = _loss_with(case, returned, dS)
    again = recorded(case, names)
    plain = watched(lambda: again.gradients(incoming(case, alone)), "call")
    return same_or_right(
        by_gradient(case, plain),
        found,
        lambda wrong: case.judged_back(wrong, alone),
        "where its final state enters another call of the same graph",
    )


def _gradients_of_both(case: CallRuleCase, first: RecordedCall, second: RecordedCall) -> Tensors:
    """Of the first call's inputs; the loss is on all outputs of both but the state between."""
    loss, signature = incoming(case), case.inputs.signature
    outputs, given = dict(second.outputs), dict(loss)
    for name, dy in loss.items():
        if not signature.is_state(name):
            outputs[f"first {name}"], given[f"first {name}"] = first.outputs[name], dy
    both = RecordedCall(outputs, first.leaves)
    return by_gradient(case, watched(lambda: both.gradients(given), "call"))


def _loss_with(case: CallRuleCase, returned: str, dS: torch.Tensor) -> Any:
    """The case's loss, with this gradient of the returned state."""
    names = {output: name for name, output in case.inputs.signature.cotangents.items()}
    given = {names[output]: dy for output, dy in incoming(case).items()}
    loss = case.loss_of({**given, names[returned]: dS.detach()})
    return handed(case.adapter, case.problem, loss)


def _from_zeros(case: CallRuleCase) -> list[Outcome]:
    names = [n for n in case.inputs.signature.names(Role.STATE) if case.inputs.holds(n)]
    if not names:
        raise Unreachable("it takes no initial state")
    # a dataclass each
    there: Any = replace(
        case.inputs, **{name: torch.zeros_like(getattr(case.inputs, name)) for name in names}
    )
    return case.judged_back(case.back(inputs=there), inputs=there)


_rule = partial(
    CallRule, packed=False, sequences=True, states=True, spare=False, backward=True, costly=True
)
RULES: Final = (
    _rule("chained-calls",
          "where the state of one call enters the next, gradients of the first call's inputs have"
          " the part that goes through it",
          "a given state that is detached where it is no leaf, a state that is returned detached",
          _chained, inside=True),
)  # fmt: skip
ZEROS: Final = (
    _rule("zero-state-backward",
          "gradients are exact where every initial state is given and all zeros",
          "states of zeros that are not loaded, and so have no gradient", _from_zeros, once=True),
)  # fmt: skip
