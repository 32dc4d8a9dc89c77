"""Outputs of one call that the next one gets, edited in place since: a state that decays, a partial
attention that is weighted.

Kernels were accepted that kept a copy of what they returned last, in another order or in fp32, and
took it wherever that tensor came back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from kdaverify.adapters.base import values_of
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.execute import watched
from kdaverify.checks.outcome import Outcome

EDITED: Final = "where what the call before returned was edited in place"


def _whole(case: CallRuleCase) -> list[Outcome]:
    return _fed_back(case, case.adapter.forward, case.run)


def _step(case: CallRuleCase) -> list[Outcome]:
    case.takes_one_token()
    return _fed_back(case, case.adapter.step, case.step)


def _fed_back(
    case: CallRuleCase, entry: Callable[[Any], Any], plainly: Callable[[Any], Tensors]
) -> list[Outcome]:
    """What a call returned is halved in place, and enters the next one as it is.

    Args:
        entry: of the kernel, which gets the very tensors.
        plainly: the same of copies.
    """
    x = case.inputs
    with torch.no_grad():
        returned = _returned(case, values_of(watched(lambda: entry(x.copied()), "call")))
        for value in returned.values():
            value.mul_(0.5)
        edited = replace(x, **{name: value.detach().clone() for name, value in returned.items()})
        again = values_of(watched(lambda: entry(replace(x.copied(), **returned)), "call"))
        found = {name: again[name].clone() for name in case.exposed}
        plain = plainly(edited)
    return same_or_right(plain, found, lambda wrong: case.judged(wrong, edited), EDITED)


def _returned(case: CallRuleCase, outputs: Mapping[str, Any]) -> Tensors:
    """Outputs by the input that each is in the next call.

    Raises:
        Unreachable: it takes none of them, or in another type.
    """
    found = {
        given: outputs[output]
        for output, given in case.adapter.operator.fed_back.items()
        if output in case.exposed and case.inputs.holds(given)
    }
    if not found:
        raise Unreachable("it returns nothing that the next call takes")
    for given, value in found.items():
        if value.dtype != getattr(case.inputs, given).dtype:
            raise Unreachable(f"what is {given} in the next call is returned in another type")
    return found


_rule = partial(
    CallRule, packed=False, spare=False, costly=True, once=True, inside=True, fed_back=True
)
RULES: Final = (
    _rule("fed-back-state",
          "a step that gets the state of the step before, edited in place since, continues from"
          " what it holds", "a copy of the last state, kept by the tensor that was returned",
          _step, size="one", sequences=True, decode=True, states=True),
)  # fmt: skip
WHOLE: Final = (
    _rule("fed-back",
          "a call that gets what the call before returned, edited in place since, reads what it"
          " holds", "a copy in fp32 of the last output, kept by the tensor that was returned",
          _whole),
)  # fmt: skip
