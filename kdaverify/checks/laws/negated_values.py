"""Values and initial state negated: outputs negated, to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.bits import BitwiseCall, Relation, same_bits
from kdaverify.checks.laws.law import LIVELY, Law
from kdaverify.checks.outcome import Outcome
from kdaverify.problems import Problem


def negated_values(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 6 with -1, which passes through every rounding:
    numbers are a sign and a magnitude.
    """
    own = problem.inputs()
    state = None if own.initial_state is None else -own.initial_state
    other = replace(own, v=-own.v, initial_state=state)
    return same_bits(
        adapter,
        problem,
        Relation(BitwiseCall(own), BitwiseCall(other), {"o": -1.0, "final_state": -1.0}),
    )


NEGATED_VALUES: Final = Law(
    name="negated-values",
    statement="v and S_0 negated: o and S_T are the same bits, negated",
    section="7, law 6",
    exists_for=(
        "terms without v or S_0: stale tiles, memory never written, one-sided clamps, rounding"
        " towards infinity (S11, O10)"
    ),
    check=negated_values,
    draws=LIVELY,
)
