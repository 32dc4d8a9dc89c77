"""A loss on a prefix alone: what comes later neither moves its gradients nor has any."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.bits import BitwiseCall, Relation, same_bits
from kdaverify.checks.laws.later_tokens import LATER_TOKENS, NAMES, before
from kdaverify.checks.laws.resample import resampled
from kdaverify.checks.outcome import Outcome
from kdaverify.problems import Problem, cotangents
from oracles.gradients import Cotangents


def prefix_gradients(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 1 and its transpose. Later gates stay, and later dg is not compared: a kernel may
    take it as a difference.
    """
    kept = before(problem)
    do = cotangents(problem, "o").do
    assert do is not None
    given = Cotangents(do=torch.where(kept[..., None, None], do, torch.zeros_like(do)))

    def alike(name: str, found: Tensor) -> Tensor:
        if name == "d_initial_state":
            return torch.ones_like(found, dtype=torch.bool)
        rows = kept if name == "dg" else torch.ones_like(kept)
        return rows.view(*rows.shape, *[1] * (found.ndim - 2)).expand(found.shape)

    other = resampled(problem, tokens=kept, names=NAMES)
    return same_bits(
        adapter,
        problem,
        Relation(BitwiseCall(problem.inputs(), given), BitwiseCall(other, given), alike=alike),
    )


PREFIX_GRADIENTS: Final = replace(
    LATER_TOKENS,
    name="prefix-gradients",
    statement=(
        "a loss on o up to t, and q, k, v and beta after t resampled: gradients up to t keep their"
        " bits, later ones stay 0"
    ),
    exists_for=(
        "masks of the backward: gradients that leak from later rows or chunks into earlier ones, or"
        " back (A12, B16, B26)"
    ),
    check=prefix_gradients,
    backward=True,
)
