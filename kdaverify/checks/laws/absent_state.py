"""An absent initial state and one of zeros: the same results."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import execute
from kdaverify.checks.laws.law import Law
from kdaverify.checks.outcome import Outcome, outcomes
from kdaverify.problems import Problem


def absent_state(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 4. The call without a state comes after one with another state: what that left
    behind is not to be read.
    """
    before, own = problem.replace(state="random").inputs(), problem.replace(state="absent").inputs()
    exposed = adapter.exposes(problem)

    def absent() -> dict[str, Tensor]:
        execute(adapter, before, exposed)
        return execute(adapter, own, exposed).outputs

    def zeros() -> dict[str, Tensor]:
        return execute(adapter, replace(own, initial_state=own.state), exposed).outputs

    return outcomes(adapter, own, absent if problem.state == "absent" else zeros)


def _either(problem: Problem) -> tuple[Problem, ...]:
    return tuple(problem.replace(state=state) for state in ("random", "absent"))


ABSENT_STATE: Final = Law(
    name="absent-state",
    statement=(
        "no initial state, after a call that had one, and a state of zeros: the same o and S_T"
    ),
    section="7, law 4",
    exists_for=(
        "an absent state that is whatever memory holds, or another request's; paths that an absent"
        " state takes (S3, S11)"
    ),
    check=absent_state,
    becomes=_either,
    draws={"state": ("absent", "zero")},
    judged=True,
)
