"""Queries, keys and initial state turned in the space of key channels:
the same o, and the final state turned likewise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import execute
from kdaverify.checks.laws.law import LIVELY, Law, of_shared_gates
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.problems import Problem

# Half of the Hadamard matrix of 4: orthogonal, and exact in every format but for the sum of four
# numbers.
TURN: Final = (
    torch.tensor(
        [[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], dtype=torch.float64
    )
    / 2
)
PLANES: Final = len(TURN)


def rotated_channels(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: section 2 with one decay for all channels, which commutes with every orthogonal matrix.

    The turned call is held to its own exact result: that of the first one, but for the rounding of
    what is turned.
    """
    own = problem.inputs()
    state = None if own.initial_state is None else turned(own.initial_state.mT).mT.contiguous()
    moved = replace(own, q=turned(own.q), k=turned(own.k), initial_state=state)
    return outcomes(
        adapter, moved, lambda: execute(adapter, moved, adapter.exposes(problem)).outputs
    )


def turned(x: Tensor) -> Tensor:
    """The last axis in groups of four, each turned, rounded to the type of x;
    what is left over stays.
    """
    whole = x.shape[-1] // PLANES * PLANES
    groups = x[..., :whole].double().unflatten(-1, (-1, PLANES)) @ TURN
    return torch.cat(
        (
            groups.flatten(-2).to(torch.promote_types(x.dtype, torch.float32)).to(x.dtype),
            x[..., whole:],
        ),
        dim=-1,
    )


def _tested(problem: Problem) -> str | None:
    return of_shared_gates(problem) or (
        None
        if problem.K >= PLANES
        else f"{problem.K} channels are fewer than the {PLANES} that turn"
    )


ROTATED_CHANNELS: Final = Law(
    name="rotated-channels",
    statement=(
        "q, k and S_0 turned by an orthogonal matrix: the same o, and S_T turned, where channels"
        " share a gate"
    ),
    section="2, where channels agree",
    exists_for=(
        "channels that are treated apart though their gate is one: products of different channels"
        " lost, gates of one channel alone"
    ),
    check=rotated_channels,
    untestable=_tested,
    draws={**LIVELY, "key": ("one-hot", "random", "coherent-0.6")},
    judged=True,
)
