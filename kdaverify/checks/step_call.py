"""A first call of a declared decode entry point: one that cannot be called is said once."""

from __future__ import annotations

from typing import Any

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import CallError, execute, mended
from kdaverify.checks.outcome import Outcome, declined


def uncalled_step(adapter: Adapter, problem: Any) -> Outcome | None:
    """What is wrong with a call of one token that the function itself answers; None if nothing, or
    where no decode entry point is declared.

    Args:
        problem: of one token, or one that is not tested.
    """
    has_step = adapter.step_form and adapter.answers and adapter.open_ended
    if not has_step or problem.T != 1 or adapter.supports(problem) is not None:
        return None
    inputs, exposed = problem.inputs(), adapter.exposes(problem)
    adapter.begin(f"step {problem.to_json()}")
    try:
        execute(adapter, inputs, exposed, entry=adapter.step)
    except CallError as fault:
        if not fault.status.takes_process and _answers(adapter, inputs, exposed):
            said = f"step: {mended(adapter, fault)}; wanted a step {adapter.step_form}"
            return declined([Outcome(fault.output, fault.status, said)])[0]
    return None


def _answers(adapter: Adapter, inputs: Any, exposed: tuple[str, ...]) -> bool:
    """Whether the function takes such a call: what is wrong with both the suites report."""
    try:
        execute(adapter, inputs, exposed)
    except CallError:
        return False
    return True
