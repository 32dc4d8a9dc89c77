"""Values and initial state times a power of two: outputs times it, to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.bits import BitwiseCall, Relation, same_bits, subnormals
from kdaverify.checks.laws.law import LIVELY, Law, no_deep_decay
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.problems import Problem

FACTOR: Final = 2.0**-20
"""Far enough to meet absolute constants, near enough to stay a normal number."""


def scaled_values(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 6. Every product and sum has one factor of v or S_0 in it, and a power of two
    passes through every rounding.
    """
    reason = subnormals(adapter.contract(problem.dtype).operands) or subnormals(
        FORMATS[problem.dtype]
    )
    if reason:
        return skipped(reason)
    own = problem.inputs()
    state = None if own.initial_state is None else FACTOR * own.initial_state
    other = replace(own, v=FACTOR * own.v, initial_state=state)
    return same_bits(
        adapter,
        problem,
        Relation(BitwiseCall(own), BitwiseCall(other), {"o": FACTOR, "final_state": FACTOR}),
    )


SCALED_VALUES: Final = Law(
    name="scaled-values",
    statement="v and S_0 times 2^-20: o and S_T are the same bits, times 2^-20",
    section="7, law 6",
    exists_for=(
        "absolute epsilons, thresholds and clamps on values or on the state, terms of neither"
        " (O6, X6)"
    ),
    check=scaled_values,
    untestable=no_deep_decay,
    draws={**LIVELY, "value": ("normal", "powers-of-two", "large")},
)
