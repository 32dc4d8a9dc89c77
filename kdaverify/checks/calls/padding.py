"""Tokens past the last offset of a pack are nobody's: whatever they hold, nothing depends on it."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import Case, Unreachable
from kdaverify.checks.calls.rule import Rule
from kdaverify.checks.outcome import Outcome
from oracles.inputs import Inputs

TOKENS = ("q", "k", "v", "g", "beta")


def _unused(case: Case) -> list[Outcome]:
    if case.problem.lengths is None:
        raise Unreachable("it takes no packs")
    if case.adapter.conventions.packing == "segment_ids":
        raise Unreachable("segment_ids tell no padding from a sequence: to the kernel it is one")
    return same_or_right(case.run(), case.run(_poisoned(case.inputs)), case.judged, "with NaN in the tokens past the last offset")


def _poisoned(x: Inputs) -> Inputs:
    used = sum(x.lengths)

    def poisoned(tensor: Tensor) -> Tensor:
        return torch.cat((tensor[:, :used], torch.full_like(tensor[:, used:], torch.nan)), dim=1)

    return replace(x, **{name: poisoned(getattr(x, name)) for name in TOKENS})


RULES = (
    Rule(
        "padding",
        "NaN in the tokens past the last offset of a pack changes nothing",
        "rows past the end read, or masked by a product (V13, O10, P8, A4, SO3)",
        _unused,
        size="tails",
        costly=True,
    ),
)
