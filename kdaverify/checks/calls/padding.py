"""Tokens past the last offset of a pack are nobody's: whatever they hold, nothing depends on it."""

from __future__ import annotations

import torch
from torch import Tensor

from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import Case, Unreachable
from kdaverify.checks.calls.rule import Rule
from kdaverify.checks.outcome import Outcome
from oracles.inputs import TENSORS, Inputs

TOKENS = ("q", "k", "v", "g", "beta")


def _unused(case: Case) -> list[Outcome]:
    if case.problem.lengths is None:
        raise Unreachable("it takes no packs")
    found = case.run(_poisoned(case.inputs), copied=_copied)
    return same_or_right(case.run(), found, case.judged, "with NaN in the tokens past the last offset")


def _poisoned(x: Inputs) -> Inputs:
    beyond = torch.arange(x.T) >= sum(x.lengths)
    return _unchecked(
        x, {name: getattr(x, name).masked_fill(beyond.view(-1, *[1] * (getattr(x, name).ndim - 2)), torch.nan) for name in TOKENS}
    )


def _copied(x: Inputs) -> Inputs:
    return _unchecked(x, {name: tensor.clone() for name in TENSORS if (tensor := getattr(x, name)) is not None})


def _unchecked(x: Inputs, tensors: dict[str, Tensor]) -> Inputs:
    """A call that is none yet: NaN is refused where it counts."""
    other = object.__new__(Inputs)
    vars(other).update({**vars(x), **tensors})
    return other


RULES = (
    Rule("padding", "NaN in the tokens past the last offset of a pack changes nothing", "rows past the end read, or masked by a product (V13, O10, P8, A4, SO3)",
         _unused, size="tails", judged=True),
)  # fmt: skip
