"""Forward: o and S_T of one call against the truth."""

from __future__ import annotations

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import execute
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.problems import Problem


def forward(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Runs the problem once and judges every exposed output."""
    inputs = problem.inputs()
    return outcomes(adapter, inputs, lambda: execute(adapter, inputs, adapter.exposes(problem)).outputs)
