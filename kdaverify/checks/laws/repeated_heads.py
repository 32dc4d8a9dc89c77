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
    own = problem.inputs()
    q, k = (x.repeat_interleave(problem.HV // problem.H, dim=2) for x in (own.q, own.k))
    return outcomes(adapter, own, lambda: execute(adapter, replace(own, q=q, k=k), adapter.exposes(problem)).outputs)


def _asked(problem: Problem) -> str | None:
    return None if problem.HV > problem.H else "every value head has a key head of its own"


def _repeated(problem: Problem) -> tuple[Problem, ...]:
    return (problem.replace(H=problem.HV),)


REPEATED_HEADS: Final = Law(
    name="repeated-heads",
    statement="q and k repeated for every value head that reads them, H = HV: the same o and S_T",
    section="7, law 11",
    exists_for="the map from value heads to key heads, grids and strides that count one kind of head for the other (H25, X5)",
    check=repeated_heads,
    asked=_asked,
    becomes=_repeated,
    judged=True,
)
