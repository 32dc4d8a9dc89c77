"""Every second batch entry resampled: nothing of the others changes."""

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


def other_entries(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 5. Every second entry is resampled, then the others."""
    return first_broken(
        _kept(adapter, problem, torch.arange(problem.B) % 2 == parity) for parity in range(2)
    )


def _kept(adapter: Adapter, problem: Problem, kept: Tensor) -> list[Outcome]:
    def alike(_: str, found: Tensor) -> Tensor:
        return kept[:, None, None, None].expand(found.shape)

    other = resampled(problem, tokens=kept[:, None].expand(problem.B, problem.T), sequences=kept)
    return same_bits(
        adapter, problem, Relation(BitwiseCall(problem.inputs()), BitwiseCall(other), alike=alike)
    )


def _tested(problem: Problem) -> str | None:
    return None if problem.B > 1 else "one batch entry has no other beside it"


OTHER_ENTRIES: Final = Law(
    name="other-entries",
    statement="every second batch entry resampled: o and S_T of the others keep their bits",
    section="7, law 5",
    exists_for="indices of batch entries: states, offsets or caches of another entry (X4)",
    check=other_entries,
    untestable=_tested,
    draws={**LIVELY, "packed": False},
)
