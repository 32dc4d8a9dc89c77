"""What a backward pass is given: gradients of a loss by outputs, from the problem."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from kdaverify.problems.axes import TORCH, state_dtype
from kdaverify.problems.problem import Problem
from kdaverify.problems.regimes import Draw
from kdaverify.problems.tensors import rounded
from oracles.gradients import Cotangents
from oracles.tensors import OUTPUTS

BOTH: Final = "both"
OF: Final = (BOTH, *OUTPUTS)
"""Which outputs the loss depends on."""

EXPONENTS: Final = {
    "fp64": (0, -25, 20),
    "fp32": (0, -25, 20),
    "bf16": (0, -25, 20),
    "fp16": (0, -8, 8),
}
"""Powers of two that a loss may be scaled by, by dtype: far enough to show absolute constants, and
inside the format's range."""
FAR: Final = {**dict.fromkeys(("fp64", "fp32", "bf16"), (-45, 20)), "fp16": (-8, 8)}
"""The same where only bits are compared: a backward that took tokens under 1e-12 for masked ones
passed at 2^-25, which is 3e-8."""

OVERFLOWING: Final = Problem(
    B=1, T=70, H=1, HV=1, K=8, V=8, dtype="fp16", gate="spread", key="random", beta="uniform",
    state="random", value="large", seed=2,
)  # fmt: skip
"""Values of 2^6: under a loss times 2^OVERFLOWING_EXPONENT some gradients exceed 65504, the largest
number of fp16, and dv and dS_0 fit.

No random problem does that: among the exponents above, 2^8 is the largest for fp16.
"""
OVERFLOWING_EXPONENT: Final = 14


def of_exposed(exposed: Sequence[str]) -> str:
    """The loss that depends on everything a kernel returns."""
    return BOTH if set(OUTPUTS) <= {*exposed} else OUTPUTS[0]


def cotangents(problem: Problem, of: str, exponent: int = 0) -> Cotangents:
    """do in the problem's dtype, dS_T in that of the state.

    Args:
        problem: whose outputs they belong to; they follow from its seed.
        of: both, o or final_state.
        exponent: of the power of two they are multiplied by.
    Raises:
        ValueError: no such `of`.
    """
    if of not in OF:
        raise ValueError(f"cotangents: wanted one of {', '.join(OF)}, got {of!r}")
    scale, p = 2.0**exponent, problem
    do = Draw(p, "do").normal("do", p.HV, p.V)
    draw = Draw(p, "d_final_state")
    dS = np.stack([draw.stream("d_final_state", n).normal(p.HV, p.K, p.V) for n in range(p.N)])
    return Cotangents(
        None if of == OUTPUTS[1] else rounded(scale * do, TORCH[p.dtype]),
        None if of == OUTPUTS[0] else rounded(scale * dS, state_dtype(p.dtype)),
    )


def coarse_cotangents(problem: Problem, of: str, number: int) -> Cotangents:
    """Cotangents of three bits, -4 to 4: small multiples and sums are exact everywhere.

    Args:
        of: both, o or final_state.
        number: distinguishes several samples of one problem.
    """
    p = problem
    do = Draw(p, "do").integers(f"coarse {number}", 9, p.HV, p.V) - 4
    streams = [Draw(p, "d_final_state").stream("coarse", number, n) for n in range(p.N)]
    dS = np.stack([stream.integers(9, p.HV, p.K, p.V) - 4 for stream in streams])
    return Cotangents(
        None if of == OUTPUTS[1] else torch.tensor(do, dtype=TORCH[p.dtype]),
        None if of == OUTPUTS[0] else torch.tensor(dS, dtype=state_dtype(p.dtype)),
    )
