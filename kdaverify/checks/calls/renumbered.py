"""The ids of a pack's sequences are names: which numbers they are changes no bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.checks.calls.bits import same_bits, same_or_right
from kdaverify.checks.calls.case import Case, Unreachable
from kdaverify.checks.calls.rule import Rule
from kdaverify.checks.outcome import Outcome

STRIDE: Final = 256
"""Ids that differ by it are the same in their last byte."""
FIRST: Final = 5


def _falling(count: int) -> Tensor:
    return torch.arange(count - 1, -1, -1, dtype=torch.int32)


def _scattered(count: int) -> Tensor:
    """Neighbours in turns smaller and larger: 261, 5, 773, 517, ..."""
    return FIRST + STRIDE * (torch.arange(count, dtype=torch.int32) ^ 1)


NUMBERINGS: Final[dict[str, Callable[[int], Tensor]]] = {
    "under falling segment ids": _falling,
    "under scattered segment ids that agree in their last byte": _scattered,
}


def _renumbered(case: Case) -> list[Outcome]:
    if case.adapter.conventions.packing != "segment_ids":
        raise Unreachable("it takes no segment ids")
    if case.problem.lengths is None:
        raise Unreachable("it takes no packs")
    x = case.inputs
    plain = {name: tensor.clone() for name, tensor in case.run().items()}
    found = list[Outcome]()
    for said, numbering in NUMBERINGS.items():
        other = case.run(replace(x, sequence_ids=numbering(x.N)))
        found += same_bits(plain, other, x, said) if case.adapter.deterministic else same_or_right(plain, other, case.judged, said)
    return found


RULES = (
    Rule(
        "renumbered",
        "a pack's segment ids may be any different numbers, in any order",
        "ids taken for sorted, for indices, or for a few bits",
        _renumbered,
        size="tails",
        costly=True,
    ),
)
