"""Outputs are linear in values and initial state together."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.linearity import defect, output_linearity_standard
from kdaverify.checks.execute import CallError, execute
from kdaverify.checks.laws.law import Law
from kdaverify.checks.outcome import Outcome, judged, skipped
from kdaverify.problems import Problem
from kdaverify.problems.cotangents import coarse_cotangents
from oracles.gradients import Cotangents, combined
from oracles.inputs import Inputs

FACTORS: Final = (1.0, -2.0, -1.0)
"""Of a, b and a - 2 b, which they add up to 0 with."""


def linearity(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 6. Values and states have the shapes of cotangents, and are of few bits like these:
    sums are exact in every format.
    """
    parts = [coarse_cotangents(problem, "both", number) for number in range(2)]
    calls = [_written(problem, given) for given in (*parts, combined(parts, FACTORS[:2]))]
    exposed = adapter.exposes(problem)
    try:
        runs = [execute(adapter, call, exposed).outputs for call in calls]
    except CallError as fault:
        return [Outcome(fault.output, fault.status, fault.message)]
    if not adapter.answers:
        return skipped("exported, not judged")
    received = [adapter.received(call) for call in calls]
    contract = adapter.contract(problem.dtype)
    io = FORMATS[problem.dtype]
    return judged(
        defect(runs, FACTORS),
        received[0],
        lambda: output_linearity_standard(received, FACTORS, contract, io),
    )


def _written(problem: Problem, given: Cotangents) -> Inputs:
    own = problem.inputs()
    assert given.do is not None
    return replace(
        own, v=given.do, initial_state=None if own.initial_state is None else given.d_final_state
    )


LINEARITY: Final = Law(
    name="linearity",
    statement="o and S_T of (v, S_0) = a - 2 b are those of a, less twice those of b",
    section="7, law 6",
    exists_for=(
        "clamps, thresholds and normalisations inside the recurrence, whatever the exact value is"
        " (O6, X6)"
    ),
    check=linearity,
    judged=True,
)
