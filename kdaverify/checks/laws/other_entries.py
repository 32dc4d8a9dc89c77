"""All other batch entries drawn anew: nothing of one entry changes."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.bits import Call, Relation, same_bits
from kdaverify.checks.laws.anew import drawn_anew
from kdaverify.checks.laws.law import Law
from kdaverify.checks.outcome import Outcome
from kdaverify.problems import Problem


def other_entries(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 5."""
    kept = torch.arange(problem.B) == problem.seed % problem.B

    def alike(_: str, found: Tensor) -> Tensor:
        return kept[:, None, None, None].expand(found.shape)

    other = drawn_anew(problem, tokens=kept[:, None].expand(problem.B, problem.T), sequences=kept)
    return same_bits(adapter, problem, Relation(Call(problem.inputs()), Call(other), alike=alike))


def _asked(problem: Problem) -> str | None:
    return None if problem.B > 1 else "one batch entry has no other beside it"


OTHER_ENTRIES: Final = Law(
    name="other-entries",
    statement="every other batch entry drawn anew: o and S_T of one entry keep their bits",
    section="7, law 5",
    exists_for="indices of batch entries: states, offsets or caches of another entry (X4, H16)",
    check=other_entries,
    asked=_asked,
    draws={"packed": False},
)
