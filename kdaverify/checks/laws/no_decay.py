"""No decay at all: the plain delta rule."""

from __future__ import annotations

from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.forward import forward
from kdaverify.checks.laws.law import Law, ends_excluded
from kdaverify.checks.outcome import Outcome
from kdaverify.problems import Problem


def no_decay(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 10."""
    return forward(adapter, _plain(problem)[0])


def _plain(problem: Problem) -> tuple[Problem, ...]:
    return (problem.replace(gate="zero"),)


NO_DECAY: Final = Law(
    name="no-decay",
    statement="g = 0: the plain delta rule",
    section="7, law 10",
    exists_for=(
        "decay differences of exactly 0 dropped or masked, constants inside the logarithm or the"
        " exponential (GA15, DESIGN-e)"
    ),
    check=no_decay,
    untestable=lambda problem: ends_excluded(problem, gate=True),
    becomes=_plain,
    judged=True,
)
