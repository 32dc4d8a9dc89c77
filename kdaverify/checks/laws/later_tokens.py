"""Later queries, keys, values and write strengths resampled: no earlier output changes."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.bits import BitwiseCall, Relation, same_bits
from kdaverify.checks.laws.law import LIVELY, Law
from kdaverify.checks.laws.resample import resampled
from kdaverify.checks.outcome import Outcome
from kdaverify.problems import Problem

NAMES: Final = ("q", "k", "v", "beta")
"""Not the gates: a kernel may take the decays of a block relative to a later row of it, which moves
roundings of earlier rows."""


def later_tokens(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 1. A masked product adds an exact 0 whatever the finite numbers behind the mask
    are.
    """
    kept = before(problem)

    def alike(name: str, found: Tensor) -> Tensor:
        shown = kept[..., None, None] if name == "o" else torch.zeros(1, dtype=torch.bool)
        return shown.expand(found.shape)

    other = resampled(problem, tokens=kept, names=NAMES)
    return same_bits(
        adapter, problem, Relation(BitwiseCall(problem.inputs()), BitwiseCall(other), alike=alike)
    )


def before(problem: Problem) -> Tensor:
    """[B, T], True before a cut that follows from the problem's seed."""
    cut = 1 + problem.seed % (problem.T - 1)
    return (torch.arange(problem.T) < cut).expand(problem.B, problem.T)


def _tested(problem: Problem) -> str | None:
    return (
        None
        if not problem.packed and problem.T > 1
        else "wanted a dense problem of two tokens or more"
    )


LATER_TOKENS: Final = Law(
    name="later-tokens",
    statement="q, k, v and beta of every token after t resampled: o up to t keeps its bits",
    section="7, law 1",
    exists_for=(
        "masks: pairs above the diagonal, rows of a tile past the token, an inverse that is not"
        " triangular (A2, A3)"
    ),
    check=later_tokens,
    untestable=_tested,
    draws={**LIVELY, "packed": False},
)
