"""Combined: a row of the covering array, forward, resumed or backward, against the truth."""

from __future__ import annotations

from kdaverify.adapters.base import Adapter
from kdaverify.checks.forward import forward
from kdaverify.checks.gradients import gradients
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.resume import cuts_within, resume
from kdaverify.problems import Problem
from kdaverify.problems.combinations import Direction


def combined(adapter: Adapter, problem: Problem, *, direction: Direction) -> list[Outcome]:
    """Judges what a row of the covering array names.

    Args:
        direction: forward; resume: cut at the middle one of the places where kernels lose a partial
            chunk; gradients of a loss on o, or on o and S_T.
    """
    if direction == "forward":
        return forward(adapter, problem)
    if direction == "resume":
        cuts = cuts_within(problem, adapter.domain)
        return resume(adapter, problem, cut=cuts[len(cuts) // 2])
    return gradients(adapter, problem, of=direction.removeprefix("gradients of "))
