"""Key channels and value columns in another order: the same results, in that order."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import execute
from kdaverify.checks.laws.law import Law
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.problems import Problem


def permuted_channels(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: section 2 names no channel. Sums over channels are then made in another order, so bits
    may change.

    The permuted call is held to its own exact result, which is the other one permuted, but for
    conversions that round by channel: raw gates with a bias of each channel are such.
    """
    own, random = problem.inputs(), torch.Generator().manual_seed(problem.seed)
    rows, columns = (torch.randperm(width, generator=random) for width in (problem.K, problem.V))
    state = None if own.initial_state is None else own.initial_state[..., rows, :][..., columns]
    g = own.g[..., rows] if problem.gates == "channel" else own.g
    moved = replace(
        own, q=own.q[..., rows], k=own.k[..., rows], g=g, v=own.v[..., columns], initial_state=state
    )
    return outcomes(
        adapter, moved, lambda: execute(adapter, moved, adapter.exposes(problem)).outputs
    )


def _tested(problem: Problem) -> str | None:
    return (
        None if max(problem.K, problem.V) > 1 else "one channel and one column have no other order"
    )


PERMUTED_CHANNELS: Final = Law(
    name="permuted-channels",
    statement="key channels and value columns in another order: the same o and S_T, in that order",
    section="2, which names no channel",
    exists_for=(
        "lanes and tiles that are treated otherwise than the rest: an anchor from one channel, a"
        " tail of the width (GA17)"
    ),
    check=permuted_channels,
    untestable=_tested,
    judged=True,
)
