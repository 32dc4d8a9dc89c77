"""Key heads repeated for every value head that reads them: nothing changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import execute
from kdaverify.checks.laws.law import Law
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.problems import Problem


def repeated_heads(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 11."""
    grouped = _grouped(problem)
    own = grouped.inputs()
    q, k = (x.repeat_interleave(grouped.HV // grouped.H, dim=2) for x in (own.q, own.k))
    return outcomes(
        adapter,
        own,
        lambda: execute(adapter, replace(own, q=q, k=k), adapter.exposes(problem)).outputs,
    )


def _grouped(problem: Problem) -> Problem:
    """The problem, with twice the value heads where every one has a key head of its own."""
    return problem if problem.HV > problem.H else problem.replace(HV=2 * problem.H)


def _both(problem: Problem) -> tuple[Problem, ...]:
    grouped = _grouped(problem)
    return (grouped, grouped.replace(H=grouped.HV))


REPEATED_HEADS: Final = Law(
    name="repeated-heads",
    statement="q and k repeated for every value head that reads them, H = HV: the same o and S_T",
    section="7, law 11",
    exists_for=(
        "the map from value heads to key heads, grids and strides that count one kind of head for"
        " the other"
    ),
    check=repeated_heads,
    becomes=_both,
    judged=True,
)
