"""A kernel whose state is a little too far off, at one seed or at all of them:
what borderline failures are tested with.
"""

from __future__ import annotations

from typing import Final

import torch

from kdaverify.adapters.base import Adapter, Output
from kdaverify.adapters.registry import find
from kdaverify.budgets.contract import Contract
from kdaverify.problems import Problem
from kdaverify.verdicts.judge import Judge
from kdaverify.verdicts.verdict import Verdict
from oracles.inputs import Inputs
from oracles.recurrence import recurrence

PROBLEM: Final = Problem(
    B=1,
    T=8,
    H=1,
    HV=2,
    K=8,
    V=8,
    dtype="bf16",
    gate="mild",
    key="random",
    beta="uniform",
    state="absent",
    value="normal",
    seed=3,
)


class Louder(Adapter):
    """`eager-recurrent` with the error of S_T enlarged,
    at one seed of the problem or at all of them.
    """

    name, dtypes = "louder", ("bf16",)

    def __init__(self, factor: float, only: Problem | None = None) -> None:
        self.factor, self.only = factor, only
        self.calls = 0

    def contract(self, dtype: str) -> Contract:
        return find("eager-recurrent").contract(dtype)

    def proof(self) -> str:
        return "louder"

    def forward(self, inputs: Inputs) -> Output:
        self.calls += 1
        found = find("eager-recurrent").forward(inputs)
        struck = self.only is None or torch.equal(inputs.v, self.only.inputs().v)
        exact = recurrence(inputs)[1]
        final = (
            exact + (self.factor if struck else 1.0) * (found.final_state.double() - exact)
        ).float()
        return Output(found.o, final)


def factor_for(ratio: float, problem: Problem = PROBLEM) -> float:
    """What enlarges the rms error of S_T on a problem to `ratio` of its tolerance."""
    quiet: list[Verdict] = []
    Judge(Louder(1.0), quiet.append, "forward")(problem)
    return ratio / next(
        verdict.ratio for verdict in quiet if verdict.output == "final_state" and verdict.ratio
    )
