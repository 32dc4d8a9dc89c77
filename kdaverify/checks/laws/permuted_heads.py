"""Value heads of a group in another order: the same results, in that order."""

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


def permuted_heads(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: value heads that share a key head are alike (law 11); v, g, beta and S_0 move together,
    and o and S_T with them.
    """
    grouped = _grouped(problem)
    own = grouped.inputs()
    moved = torch.arange(grouped.HV).unflatten(0, (grouped.H, -1)).roll(1, 1).flatten()
    state = None if own.initial_state is None else own.initial_state[:, moved]
    other = replace(
        own,
        v=own.v[:, :, moved],
        g=own.g[:, :, moved],
        beta=own.beta[:, :, moved],
        initial_state=state,
    )

    def produce() -> dict[str, Tensor]:
        found, back = execute(adapter, other, adapter.exposes(grouped)).outputs, moved.argsort()
        return {name: x[:, :, back] if name == "o" else x[:, back] for name, x in found.items()}

    return outcomes(adapter, own, produce)


def _grouped(problem: Problem) -> Problem:
    """The problem, with twice the value heads where every one has a key head of its own."""
    return problem if problem.HV > problem.H else problem.replace(HV=2 * problem.H)


PERMUTED_HEADS: Final = Law(
    name="permuted-heads",
    statement=(
        "v, g, beta and S_0 of the value heads of a group in another order: the same o and S_T, in"
        " that order"
    ),
    section="7, law 11",
    exists_for=(
        "the gate, beta or state of another value head of the group, or of its first one for all"
        " (D38)"
    ),
    check=permuted_heads,
    untestable=of_shared_gates,
    becomes=lambda problem: (_grouped(problem),),
    draws=LIVELY,
    judged=True,
)
