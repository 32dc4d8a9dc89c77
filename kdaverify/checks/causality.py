"""Causality: no output depends on a later token."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.fitting import fitted
from kdaverify.checks.execute import execute
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.problems import Problem
from oracles.inputs import Inputs
from oracles.tensors import TOKENS


def causality(adapter: Adapter, problem: Problem, *, cut: int) -> list[Outcome]:
    """Math: law 1. Runs the problem with every token from `cut` on replaced by hostile ones; judges
    o before the cut.

    The truth is that of the prefix alone: it has never seen the later tokens.

    Args:
        problem: a dense problem with T > cut.
        cut: first replaced token.
    """
    if problem.packed or not 0 < cut < problem.T:
        raise ValueError(
            f"causality: wanted a dense problem longer than the cut, got {problem.describe()} cut"
            f" at {cut}"
        )
    own = problem.inputs()
    spoilt = with_hostile_tokens(adapter, problem, own, cut)
    return outcomes(adapter, prefix(own, cut), lambda: before(adapter, spoilt, cut))


def prefix(inputs: Inputs, cut: int) -> Inputs:
    """The call on the tokens before `cut` alone."""
    return inputs.span(0, cut, inputs.initial_state)


def with_hostile_tokens(adapter: Adapter, problem: Problem, own: Inputs, cut: int) -> Inputs:
    """The call with the most hostile tokens from `cut` on that the kernel declares to take."""
    hostile = problem.replace(seed=problem.seed + 1, gate="bound-100", beta="one", value="large")
    other = fitted(adapter, hostile).inputs()
    joined = {
        name: torch.cat((getattr(own, name)[:, :cut], getattr(other, name)[:, cut:]), dim=1)
        for name in TOKENS
    }
    return replace(own, **joined)


def before(adapter: Adapter, inputs: Inputs, cut: int) -> dict[str, Tensor]:
    """o of the tokens before `cut`.

    Raises:
        CallError: the call gave nothing to compare.
    """
    return {"o": execute(adapter, inputs, ("o",)).outputs["o"][:, :cut]}
