"""All other heads drawn anew: nothing of one head changes."""

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


def other_heads(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 5. The calls have the same shapes, so nothing of the kept head is computed otherwise."""
    kept = torch.arange(problem.HV) == problem.seed % problem.HV

    def alike(name: str, found: Tensor) -> Tensor:
        heads = kept[:, None] if name == "o" else kept[:, None, None]
        return heads.expand(found.shape)

    return same_bits(adapter, problem, Relation(Call(problem.inputs()), Call(drawn_anew(problem, heads=kept)), alike=alike))


def _asked(problem: Problem) -> str | None:
    return None if problem.HV > 1 else "one value head has no other beside it"


OTHER_HEADS: Final = Law(
    name="other-heads",
    statement="every other head drawn anew: o and S_T of one value head keep their bits",
    section="7, law 5",
    exists_for="indices of heads: rows, states, gates or accumulators of a neighbouring head (H23, H25, X5)",
    check=other_heads,
    asked=_asked,
)
