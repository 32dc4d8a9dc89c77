"""Packs: tokens past the last offset are nobody's, and ids of sequences are names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.conventions import OUTSIDE
from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome
from oracles.inputs import Inputs
from oracles.signature import Role
from oracles.tensors import SIGNATURE

STRIDE: Final = 256
"""Ids that differ by it are the same in their last byte."""
FIRST: Final = 5
"""The smallest id: none is 0, or the number of its sequence."""


def _unused(case: CallRuleCase) -> list[Outcome]:
    _has_unused(case)
    said = f"with {_number(case)} in the tokens past the last offset"
    return same_or_right(case.run(), case.run(_poisoned(case)), case.judged, said)


def _unused_back(case: CallRuleCase) -> list[Outcome]:
    _has_unused(case)
    signature = case.inputs.signature
    loss = case.given
    outputs = {name: signature.cotangents[name] for name in loss}
    poisoned = {name: _past(case, outputs[name], dy) for name, dy in loss.items()}
    plain, found = case.back(), case.back(case.loss_of(poisoned), _poisoned(case))
    return same_or_right(
        plain,
        found,
        case.judged_back,
        f"with {_number(case)} in the tokens past the last offset, and in the gradients of theirs",
    )


def _has_unused(case: CallRuleCase) -> None:
    if case.problem.lengths is None:
        raise Unreachable("it takes no packs")
    if case.adapter.conventions.packing == "segment_ids":
        raise Unreachable(
            "segment_ids do not distinguish padding from a sequence: to the kernel it is one"
        )


def _number(case: CallRuleCase) -> str:
    number = case.adapter.operator.unused_number(case.adapter)
    return "NaN" if math.isnan(number) else f"{number:g}"


def _poisoned(case: CallRuleCase) -> Any:
    """The call with other numbers in the tokens past the last offset."""
    given = case.inputs.signature.tensors(case.inputs, Role.TOKEN)
    # a dataclass each
    return replace(case.inputs, **{name: _past(case, name, x) for name, x in given.items()})


def _past(case: CallRuleCase, name: str, tensor: Tensor) -> Tensor:
    """An input, or the cotangent of an output, with those numbers; that of a state as it is."""
    if case.inputs.signature.is_state(name):
        return tensor
    number = case.adapter.operator.unused_number(case.adapter)
    return _joined(case, name, tensor, torch.full_like(tensor, number))


def _joined(case: CallRuleCase, name: str, used: Tensor, unused: Tensor) -> Tensor:
    """The rows of sequences of one tensor, and the others of another."""
    axis, count = case.adapter.operator.unused_rows(case.inputs)[name]
    behind = unused.narrow(axis, count, unused.shape[axis] - count)
    return torch.cat((used.narrow(axis, 0, count), behind), axis)


def _scattered(count: int) -> Tensor:
    """Neighbours in turns smaller and larger: 261, 5, 773, 517, ..."""
    return FIRST + STRIDE * (torch.arange(count, dtype=torch.int32) ^ 1)


def _multiples(count: int, bits: int) -> Tensor:
    """FIRST and multiples of 2^bits: their last bits agree, as those of hashes may; a port that
    kept 16 was accepted.
    """
    return FIRST + (torch.arange(count, dtype=torch.int32) << bits)


NUMBERINGS: Final[dict[str, Callable[[int], Tensor]]] = {
    "under falling segment ids": lambda count: torch.arange(count - 1, -1, -1, dtype=torch.int32),
    "under scattered segment ids that agree in their last byte": _scattered,
    "under segment ids past 2^26, which fp32 does not distinguish": lambda count: (
        2**26 + torch.arange(count, dtype=torch.int32)
    ),
    "under segment ids that differ by multiples of 2^16": lambda count: _multiples(count, 16),
    "under segment ids that differ by multiples of 2^24": lambda count: _multiples(count, 24),
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
        found += case.repeats(plain, other, said)
    return found


def _nobodys(case: CallRuleCase) -> list[Outcome]:
    """Makes one sequence after another padding: those have no results, others have right ones.

    Not the same bits: a kernel that pads a pack densely then multiplies matrices of other shapes,
    and was rejected for one unit in the last place.
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
        found += same_or_right(plain, other, case.judged, said)
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
    CallRule("padding", "NaN in the tokens past the last offset of a pack changes nothing",
             "rows past the end read, or masked by a product (V13, O10, P8, A4, SO3)", _unused,
             size="tails", sequences=True, offsets=True, costly=True, memory=True),
    CallRule("padding-backward",
             "NaN in those tokens, and in the gradients of their outputs, changes no gradient of"
             " another token",
             "the same in the backward: a do read past the end, a sum over all tokens (A4, B12)",
             _unused_back, size="tails", sequences=True, offsets=True, backward=True, costly=True,
             memory=True),
    CallRule("renumbered", "a pack's segment ids may be any different numbers, in any order",
             "ids taken for sorted, for indices, or for a few bits", _renumbered, size="tails",
             sequences=True, costly=True),
    CallRule("padding-by-ids",
             "tokens of no sequence, in front of a pack's sequences and between them, leave the"
             " results of all others right", "padding looked for at the end alone", _nobodys,
             size="tails", sequences=True, costly=True),
)  # fmt: skip
