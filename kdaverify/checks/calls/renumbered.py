"""The ids of a pack's sequences are names: which numbers they are,
and where nobody's tokens lie, changes no bit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.conventions import OUTSIDE
from kdaverify.checks.calls.bits import same_bits, same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome
from oracles.inputs import Inputs
from oracles.tensors import SIGNATURE

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


def _takes_ids(case: CallRuleCase) -> None:
    if case.adapter.conventions.packing != "segment_ids":
        raise Unreachable("it takes no segment ids")
    if case.problem.lengths is None:
        raise Unreachable("it takes no packs")


def _renumbered(case: CallRuleCase) -> list[Outcome]:
    _takes_ids(case)
    x = case.inputs
    plain = {name: tensor.clone() for name, tensor in case.run().items()}
    found = list[Outcome]()
    for said, numbering in NUMBERINGS.items():
        other = case.run(replace(x, sequence_ids=numbering(x.N)))
        found += (
            same_bits(plain, other, x, said)
            if case.adapter.deterministic
            else same_or_right(plain, other, case.judged, said)
        )
    return found


def _nobodys(case: CallRuleCase) -> list[Outcome]:
    """Makes one sequence after another padding:
    what is nobody's has no results, and the others keep theirs.
    """
    _takes_ids(case)
    x = case.inputs
    plain = {name: tensor.clone() for name, tensor in case.run().items()}
    # behind the last one there is padding already
    *others, _ = (number for number, length in enumerate(x.lengths) if length)
    found = list[Outcome]()
    for number in others:
        ids = torch.arange(x.N, dtype=torch.int32).index_fill(0, torch.tensor([number]), OUTSIDE)
        other = _with(case.run(replace(x, sequence_ids=ids)), plain, x, number)
        said = f"with padding (segment id {OUTSIDE}) in the place of sequence {number}"
        found += (
            same_bits(plain, other, x, said)
            if case.adapter.deterministic
            else same_or_right(plain, other, case.judged, said)
        )
    return found


def _with(
    found: Mapping[str, Tensor], plain: Mapping[str, Tensor], x: Inputs, number: int
) -> dict[str, Tensor]:
    """`found`, one sequence's results replaced by those of `plain`."""
    first = sum(x.lengths[:number])
    tokens = slice(first, first + x.lengths[number])
    kept = {name: tensor.clone() for name, tensor in found.items()}
    for name, tensor in kept.items():
        at = (number,) if SIGNATURE.is_state(name) else (slice(None), tokens)
        tensor[at] = plain[name][at]
    return kept


RULES = (
    CallRule(
        "renumbered",
        "a pack's segment ids may be any different numbers, in any order",
        "ids taken for sorted, for indices, or for a few bits",
        _renumbered,
        size="tails",
        sequences=True,
        costly=True,
    ),
    CallRule(
        "padding-by-ids",
        "tokens of no sequence, in front of a pack's sequences and between them, change no other"
        " one's bits",
        "padding looked for at the end alone",
        _nobodys,
        size="tails",
        sequences=True,
        costly=True,
    ),
)
