"""A call that autograd does not record returns what any other does: a server calls so.

Elsewhere gradients are enabled and no input requires one: a kernel that branches on whether they
are enabled takes the path of a server nowhere else.
"""

from __future__ import annotations

from functools import partial
from typing import Final

import torch

from kdaverify.checks.calls.autograd import in_inference_mode
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors
from kdaverify.checks.calls.lifetimes import edited, other_values
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome


def _without_gradients(case: CallRuleCase) -> Tensors:
    with torch.no_grad():
        return case.run()


def _untracked(case: CallRuleCase) -> list[Outcome]:
    return same_or_right(case.run(), _without_gradients(case), case.judged, "under no_grad")


def _one_token(case: CallRuleCase) -> list[Outcome]:
    plain = case.run()
    modes = {"under no_grad": _without_gradients, "in inference mode": in_inference_mode}
    return [
        outcome
        for said, call in modes.items()
        for outcome in same_or_right(plain, call(case), case.judged, f"of one token, {said}")
    ]


def _edited(case: CallRuleCase) -> list[Outcome]:
    """In a mode after the other: a kernel may keep what it derived in either alone."""
    return [
        outcome
        for mode in (torch.no_grad, torch.inference_mode)
        for outcome in edited(case, other_values(case), mode)
    ]


_rule = partial(CallRule, spare=False, costly=True, inside=True)
RULES: Final = (
    _rule(
        "no-grad",
        "a call under no_grad returns what any other does",
        "a path of its own where no gradients are enabled",
        _untracked,
        size="tails",
    ),
    _rule(
        "no-grad-one-token",
        "the same of one token of each sequence, under no_grad and in inference mode",
        "a decode path behind the main entry point: it updates the given state in place, or skips"
        " the scale",
        _one_token,
        size="one",
        packed=False,
        sequences=True,
    ),
    _rule(
        "edited-values-no-grad",
        "all tensors overwritten in place are a new call under no_grad and in inference mode, too",
        "weights converted for a server, and kept by their address",
        _edited,
        size="tiny",
        channel="objects",
    ),
)
