"""Every second head resampled: nothing of the others changes."""

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


def other_heads(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 5. Every second head is resampled, then the others: each has been a neighbour on
    both sides.

    The calls have the same shapes, so nothing of a kept head is computed otherwise.
    """
    return first_broken(
        _kept(adapter, problem, torch.arange(problem.HV) % 2 == parity) for parity in range(2)
    )


def _kept(adapter: Adapter, problem: Problem, kept: Tensor) -> list[Outcome]:
    def alike(name: str, found: Tensor) -> Tensor:
        heads = kept[:, None] if name == "o" else kept[:, None, None]
        return heads.expand(found.shape)

    return same_bits(
        adapter,
        problem,
        Relation(
            BitwiseCall(problem.inputs()), BitwiseCall(resampled(problem, heads=kept)), alike=alike
        ),
    )


def _tested(problem: Problem) -> str | None:
    return None if problem.HV > 1 else "one value head has no other beside it"


OTHER_HEADS: Final = Law(
    name="other-heads",
    statement="every second head resampled: o and S_T of the others keep their bits",
    section="7, law 5",
    exists_for="indices of heads: rows, states, gates or accumulators of a neighbouring head (H23)",
    check=other_heads,
    untestable=_tested,
    draws=LIVELY,
)
