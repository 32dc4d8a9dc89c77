"""From a problem to the tensors a kernel receives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from kdaverify.problems.axes import TORCH, state_dtype
from kdaverify.problems.portable import Array
from kdaverify.problems.regimes import BETAS, GATES, KEYS, STATES, VALUES, Draw
from oracles.inputs import Inputs

if TYPE_CHECKING:
    from kdaverify.problems.problem import Problem


def build(problem: Problem) -> Inputs:
    """Draw every tensor in float64 and round it to the type the problem requests.

    Returns:
        Inputs with q, k, v, beta in the problem's dtype, g and initial_state in fp32 (fp64 beside
        fp64), fresh memory each time.
    """
    dtype, wide = TORCH[problem.dtype], state_dtype(problem.dtype)
    q, k = KEYS[problem.key].draw(Draw(problem, "key"))
    state = STATES[problem.state].draw(Draw(problem, "state"))
    return Inputs(
        q=rounded(q, dtype),
        k=rounded(k, dtype),
        v=rounded(VALUES[problem.value].draw(Draw(problem, "value")), dtype),
        g=gates(problem),
        beta=betas(problem),
        scale=problem.scale,
        initial_state=None if state is None else rounded(state, wide),
        cu_seqlens=(
            None
            if problem.lengths is None
            else torch.tensor([0, *np.cumsum(problem.lengths).tolist()], dtype=torch.int32)
        ),
    )


def gates(problem: Problem) -> Tensor:
    """g alone [B, T, HV, KG], for interfaces that must see it before a state of gigabytes.

    Where channels share a gate it is that of the first: regimes of channels sample a gate for each
    of them.
    """
    drawn = _clamped(GATES[problem.gate].draw(Draw(problem, "gate")), problem.gate_range)
    return rounded(
        drawn[..., : {"channel": problem.K, "head": 1, "none": 0}[problem.gates]],
        state_dtype(problem.dtype),
    )


def betas(problem: Problem) -> Tensor:
    """beta alone [B, T, HV]."""
    return rounded(
        _clamped(BETAS[problem.beta].draw(Draw(problem, "beta")), problem.beta_range),
        TORCH[problem.dtype],
    )


def _clamped(values: Array, limits: tuple[float | None, float | None] | None) -> Array:
    return values if limits is None else np.clip(values, *limits)


def rounded(values: Array, dtype: torch.dtype) -> Tensor:
    """float64 values in `dtype`, the same on every processor."""
    wide = torch.tensor(np.ascontiguousarray(values), dtype=torch.float64)
    # float64 to 16 bits is one rounding on some processors and two on others: always go through
    # float32.
    return wide if dtype == torch.float64 else wide.to(torch.float32).to(dtype)
