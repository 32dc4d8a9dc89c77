"""Every second sequence of a pack resampled: nothing of the others changes."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.bits import BitwiseCall, Relation, first_broken, same_bits
from kdaverify.checks.laws.law import LIVELY, Law
from kdaverify.checks.laws.resample import resampled
from kdaverify.checks.outcome import Outcome
from kdaverify.problems import Problem


def neighbours(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 3. Of the sequences with tokens every second one is resampled, then the others;
    what is past the last offset, each time.

    Empty ones are kept.
    """
    return first_broken(_kept(adapter, problem, parity) for parity in range(2))


def _kept(adapter: Adapter, problem: Problem, parity: int) -> list[Outcome]:
    lengths = torch.tensor([length for _, _, length in problem.spans])
    sequences = (lengths == 0) | ((lengths > 0).cumsum(0) % 2 == parity)
    tokens = torch.zeros(1, problem.T, dtype=torch.bool)
    tokens[0, : int(lengths.sum())] = sequences.repeat_interleave(lengths)

    def alike(name: str, found: Tensor) -> Tensor:
        kept = tokens[..., None, None] if name == "o" else sequences[:, None, None, None]
        return kept.expand(found.shape)

    other = resampled(problem, tokens=tokens, sequences=sequences)
    return same_bits(
        adapter, problem, Relation(BitwiseCall(problem.inputs()), BitwiseCall(other), alike=alike)
    )


def _tested(problem: Problem) -> str | None:
    used = [length for _, _, length in problem.spans if length]
    return (
        None
        if problem.packed and len(used) > 1
        else "wanted a pack of two sequences with tokens or more"
    )


NEIGHBOURS: Final = Law(
    name="neighbours",
    statement=(
        "every second sequence of a pack, and its padding, resampled: o and S_T of the others, and"
        " of empty ones, keep their bits"
    ),
    section="7, law 3",
    exists_for=(
        "offsets and chunk tables: tiles, states or gates that reach into the next sequence (V1,"
        " V10, V11, H4)"
    ),
    check=neighbours,
    untestable=_tested,
    draws={**LIVELY, "packed": True},
)
