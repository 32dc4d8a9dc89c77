"""Forward: every output of one call against its exact values."""

from __future__ import annotations

from typing import Any

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import execute
from kdaverify.checks.outcome import Outcome, outcomes


def forward(adapter: Adapter, problem: Any) -> list[Outcome]:
    """Runs the problem once and judges every exposed output."""
    inputs = problem.inputs()
    return outcomes(
        adapter, inputs, lambda: execute(adapter, inputs, adapter.exposes(problem)).outputs
    )
