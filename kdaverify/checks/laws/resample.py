"""The call of a problem with a part of it resampled: what must leave the rest alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.problems import Problem
from oracles.inputs import Inputs
from oracles.tensors import TOKENS

BY_KEY_HEAD: Final = ("q", "k")


def resampled(
    problem: Problem,
    *,
    tokens: Tensor | None = None,
    heads: Tensor | None = None,
    sequences: Tensor | None = None,
    names: Sequence[str] = (*TOKENS, "initial_state"),
) -> Inputs:
    """The problem's call where only what is kept is its own; the rest comes from the same regimes
    at another seed.

    Args:
        tokens: [B, T], True where tokens are kept; None: all.
        heads: [HV], the value heads kept, and with them the key heads they read; None: all.
        sequences: [N], whose initial states are kept; None: all.
        names: the inputs that may be resampled.
    """
    own, other = problem.inputs(), problem.replace(seed=problem.seed + 1).inputs()
    rows = _all(problem.B, problem.T) if tokens is None else tokens
    columns = _all(problem.HV) if heads is None else heads
    states = _all(problem.N) if sequences is None else sequences

    def kept(name: str) -> Tensor:
        if name == "initial_state":
            return states[:, None, None, None] & columns[:, None, None]
        read = columns.view(problem.H, -1).any(1) if name in BY_KEY_HEAD else columns
        mask = rows[:, :, None] & read
        return mask if name == "beta" else mask[..., None]

    changed = {
        name: torch.where(kept(name), getattr(own, name), getattr(other, name))
        for name in names
        if getattr(own, name) is not None
    }
    return replace(own, **changed)


def _all(*sizes: int) -> Tensor:
    return torch.ones(sizes, dtype=torch.bool)
