"""Tokens past the last offset of a pack are nobody's: whatever they hold, nothing depends on it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from kdaverify.adapters.base import values_of
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome
from oracles.signature import Role


def _unused(case: CallRuleCase) -> list[Outcome]:
    _has_unused(case)
    return same_or_right(
        case.run(),
        case.run(_poisoned(case.inputs)),
        case.judged,
        "with NaN in the tokens past the last offset",
    )


def _unused_back(case: CallRuleCase) -> list[Outcome]:
    _has_unused(case)
    used, signature = sum(case.inputs.lengths), case.inputs.signature
    loss = {name: dy for name, dy in values_of(case.cotangents).items() if dy is not None}
    poisoned = {
        name: dy if signature.is_state(name) else _poisoned_past(used, dy)
        for name, dy in loss.items()
    }
    given = case.adapter.operator.cotangents(dict.fromkeys(signature.cotangents) | poisoned)
    plain, found = case.back(), case.back(given, _poisoned(case.inputs))
    # The gradients of the unused tokens themselves are what the suite `gradients` judges, with
    # finite numbers in them.
    for name in {
        gradient
        for gradient, source in signature.gradients.items()
        if signature[source].role is Role.TOKEN
    } & found.keys():
        found[name] = torch.cat((found[name][:, :used], plain[name][:, used:]), dim=1)
    return same_or_right(
        plain,
        found,
        case.judged_back,
        "with NaN in the tokens past the last offset, and in the gradients of theirs",
    )


def _has_unused(case: CallRuleCase) -> None:
    if case.problem.lengths is None:
        raise Unreachable("it takes no packs")
    if case.adapter.conventions.packing == "segment_ids":
        raise Unreachable(
            "segment_ids do not distinguish padding from a sequence: to the kernel it is one"
        )


def _poisoned(x: Any) -> Any:
    used = sum(x.lengths)
    return x.mapped(partial(_poisoned_past, used), Role.TOKEN)


def _poisoned_past(used: int, tensor: Tensor) -> Tensor:
    return torch.cat((tensor[:, :used], torch.full_like(tensor[:, used:], torch.nan)), dim=1)


RULES = (
    CallRule(
        "padding",
        "NaN in the tokens past the last offset of a pack changes nothing",
        "rows past the end read, or masked by a product (V13, O10, P8, A4, SO3)",
        _unused,
        size="tails",
        sequences=True,
        costly=True,
        memory=True,
    ),
    CallRule(
        "padding-backward",
        "NaN in those tokens, and in the gradients of their outputs, changes no gradient of another"
        " token",
        "the same in the backward: a do read past the end, a sum over all tokens (A4, B12)",
        _unused_back,
        size="tails",
        sequences=True,
        backward=True,
        costly=True,
        memory=True,
    ),
)
