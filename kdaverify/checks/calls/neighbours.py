"""NaN in one sequence of a pack stays there: sequences are requests of different users."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.checks.calls.bits import same_or_right
from kdaverify.checks.calls.case import CallRuleCase, Tensors, Unreachable
from kdaverify.checks.calls.rule import CallRule
from kdaverify.checks.outcome import Outcome
from oracles.signature import Role

Rows = Mapping[str, tuple[int, slice]]


def _kept_apart(case: CallRuleCase) -> list[Outcome]:
    if not case.adapter.operator.holds_nan:
        raise Unreachable("its calls hold no NaN")
    if case.problem.lengths is None:
        raise Unreachable("it takes no packs")
    if not math.isnan(case.adapter.operator.unused_number(case.adapter)):
        raise Unreachable("it is declared to take no NaN beside the rows that count")
    plain = {name: tensor.clone() for name, tensor in case.run().items()}
    axes, ends = case.adapter.operator.unused_rows(case.inputs), [*accumulate(case.inputs.lengths)]
    found = list[Outcome]()
    for number, (first, end) in enumerate(pairwise((0, *ends))):
        if first == end:
            continue
        rows = {name: (axis, slice(first, end)) for name, (axis, _) in axes.items()}
        other = _with(plain, case.run(_poisoned(case.inputs, rows)), rows, case, number)
        said = f"with NaN in every token of sequence {number}"
        found += same_or_right(plain, other, case.judged, said)
    return found


def _poisoned(inputs: Any, rows: Rows) -> Any:
    given: Tensors = inputs.signature.tensors(inputs, Role.TOKEN)
    made = {name: _filled(x, *rows[name]) for name, x in given.items()}
    # a dataclass each
    return replace(inputs, **made)


def _filled(tensor: Tensor, axis: int, at: slice) -> Tensor:
    made = tensor.clone()
    made.narrow(axis, at.start, at.stop - at.start).fill_(torch.nan)
    return made


def _with(
    plain: Tensors, found: Tensors, rows: Rows, case: CallRuleCase, number: int
) -> dict[str, Tensor]:
    """`found`, the results of one sequence replaced by those of `plain`."""
    kept = {name: tensor.clone() for name, tensor in found.items()}
    for name, tensor in kept.items():
        is_state = case.inputs.signature.is_state(name)
        axis, at = (0, slice(number, number + 1)) if is_state else rows[name]
        size = at.stop - at.start
        tensor.narrow(axis, at.start, size).copy_(plain[name].narrow(axis, at.start, size))
    return kept


RULES: Final = (
    CallRule("sequences-apart", "NaN in one sequence of a pack changes no result of another",
             "taps, keys or states of a neighbour read and multiplied by 0", _kept_apart,
             sequences=True, apart=True, spare=False, costly=True),
)  # fmt: skip
