"""Gradients of parameters that are small differences of large partial sums.

Gradients of parameters sum over all rows, and programs sum parts of them. What is rounded between
the parts hides behind the rounding of the sum where that is as large as the parts are: a kernel
that stored partial sums of 4,096 tokens in 16 bits, undeclared, was accepted. Here every row of a
long batch comes twice, with opposite cotangents, but for a few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import is_slow
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome, first_wrong_or_all, placed
from oracles.signature import Role

LEFT: Final = 64
"""Rows without an opposite: what the gradients of parameters sum to."""


def _long_sums(case: CallRuleCase) -> list[Outcome]:
    return first_wrong_or_all(
        _opposed(replace(case, problem=case.beside(**fields))) for fields in _choices(case)
    )


def _choices(case: CallRuleCase) -> tuple[Mapping[str, Any], ...]:
    """The first alone where a call takes seconds."""
    found = case.adapter.operator.long_sums
    if not found:
        raise Unreachable("no parameter of it has a gradient, or exact values take long")
    return found[:1] if is_slow(case.adapter) else found


def _opposed(case: CallRuleCase) -> list[Outcome]:
    if getattr(case.problem, "packed", False) or case.problem.B != 2:
        raise Unreachable("it takes no batch of two entries")
    x, loss = _two_alike(case.inputs), case.loss_of(_of_opposite_signs(case))
    rows = case.problem.B * case.problem.T
    said = f", where parts of {rows} rows cancel in the gradients of parameters"
    return placed(case.judged_back(case.back(loss, x), loss, x), said)


def _two_alike(call: Any) -> Any:
    """The second entry has the rows of the first, half of them further: programs that sum the same
    rows of all entries get no pair.
    """
    signature = call.signature
    rows = {name: _twice(x) for name, x in signature.tensors(call, Role.TOKEN).items()}
    states = {
        name: torch.cat((x[:1], x[:1])) for name, x in signature.tensors(call, Role.STATE).items()
    }
    return replace(call, **rows, **states)


def _twice(x: Tensor) -> Tensor:
    first = x[:1]
    return torch.cat((first, first.roll(first.shape[1] // 2, 1)))


def _of_opposite_signs(case: CallRuleCase) -> dict[str, Tensor]:
    signature, found = case.inputs.signature, dict[str, Tensor]()
    for name, dy in case.given.items():
        if signature.is_state(signature.cotangents[name]):
            found[name] = dy
            continue
        both = _twice(dy)
        both[1] = -both[1]
        both[1, :LEFT] = 0
        found[name] = both
    return found


RULES: Final = (
    CallRule("long-sums-backward", "gradients of parameters are exact where large sums over parts"
             " of over 16,000 rows cancel in them",
             "partial sums of gradients of parameters that are stored or added in 16 bits",
             _long_sums, packed=False, spare=False, once=True, backward=True, summed=True),
)  # fmt: skip
