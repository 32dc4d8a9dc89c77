"""beta = 0: keys and values have no part in anything."""

from __future__ import annotations

from typing import Final

import torch

from kdaverify.adapters.base import Adapter
from kdaverify.checks.bits import BitwiseCall, Relation, same_bits
from kdaverify.checks.laws.law import LIVELY, Law, ends_excluded
from kdaverify.checks.laws.resample import resampled
from kdaverify.checks.outcome import Outcome
from kdaverify.problems import Problem


def no_writes(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 8. What is multiplied by beta is 0, whatever it is."""
    pure, nobody = problem.replace(beta="zero"), torch.zeros(problem.B, problem.T, dtype=torch.bool)
    return same_bits(
        adapter,
        problem,
        Relation(
            BitwiseCall(pure.inputs()),
            BitwiseCall(resampled(pure, tokens=nobody, names=("k", "v"))),
        ),
    )


def _pure(problem: Problem) -> tuple[Problem, ...]:
    return (problem.replace(beta="zero"),)


NO_WRITES: Final = Law(
    name="no-writes",
    statement="beta = 0: o and S_T keep their bits when k and v are resampled",
    section="7, law 8",
    exists_for=(
        "writes without their beta, terms of k or v beside the delta rule, beta of another token or"
        " head"
    ),
    check=no_writes,
    untestable=lambda problem: ends_excluded(problem, beta=True),
    becomes=_pure,
    draws={**LIVELY, "state": ("random", "large", "asymmetric")},
)
