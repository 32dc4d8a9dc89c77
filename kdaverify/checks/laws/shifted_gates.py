"""Decays by powers of two, moved from the gates into the values:
o and S_T times the powers of two that are left.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import execute
from kdaverify.checks.laws.law import LIVELY, Law, ends_excluded, of_shared_gates
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.problems import Problem
from kdaverify.problems.portable import Stream
from oracles.inputs import Inputs

HALVINGS: Final = 6
"""Of a sequence, spread over its tokens: 2^6 times any value that problems have is a normal number
of fp16, its inverse too."""


def shifted_gates(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: with g_t = -n_t ln 2 and N_t their sum, o_t is 2^-N_t times that of v_t 2^N_t without
    decay, and so is S.

    The call without decay is made; what comes of it, times the powers of two, is held to the exact
    result of the gated call.
    """
    own, total = problem.inputs(), _halvings(problem)
    steps = torch.diff(total, dim=1, prepend=torch.zeros_like(total[:, :1]))
    # A sum starts anew with every sequence of a pack.
    g = -math.log(2.0) * torch.where(steps < 0, total, steps)[..., None]
    still = replace(own, v=torch.ldexp(own.v, total[..., None]), g=torch.zeros_like(own.g))
    gated = replace(own, g=g.to(torch.float64))

    def produce() -> dict[str, Tensor]:
        found = execute(adapter, still, adapter.exposes(problem)).outputs
        left = {"o": total[..., None], "final_state": _at_the_end(own, total)[..., None, None]}
        return {name: torch.ldexp(x, -left[name]) for name, x in found.items()}

    return outcomes(adapter, gated, produce)


def _halvings(problem: Problem) -> Tensor:
    """N_t [B, T, HV] of every token: each sequence of each head has HALVINGS of them,
    at tokens of its own.
    """
    total = torch.zeros(problem.B, problem.T, problem.HV, dtype=torch.int32)
    for n, (b, first, length) in enumerate(problem.spans):
        for head in range(problem.HV if length else 0):
            at = torch.tensor(Stream(problem.seed, "halvings", n, head).integers(length, HALVINGS))
            total[b, first : first + length, head] = (
                torch.bincount(at, minlength=length).cumsum(0).int()
            )
    return total


def _at_the_end(own: Inputs, total: Tensor) -> Tensor:
    """N of the last token of every sequence [N, HV], 0 where there is none."""
    flat = total.flatten(0, 1)
    rows = [
        first + length - 1 if length else None
        for first, length in zip(own.starts, own.lengths, strict=True)
    ]
    return torch.stack([torch.zeros_like(flat[0]) if row is None else flat[row] for row in rows])


def _tested(problem: Problem) -> str | None:
    return of_shared_gates(problem) or ends_excluded(problem, gate=True)


SHIFTED_GATES: Final = Law(
    name="shifted-gates",
    statement=(
        "v_t times 2^N_t and no decay: o_t and S_T of the call whose gates halve N_t times until t,"
        " times 2^N_t"
    ),
    section="2, where channels agree",
    exists_for=(
        "calls without decay that take a path of their own: updates skipped or made twice (D33)"
    ),
    check=shifted_gates,
    untestable=_tested,
    draws={**LIVELY, "value": ("normal", "powers-of-two")},
    judged=True,
)
