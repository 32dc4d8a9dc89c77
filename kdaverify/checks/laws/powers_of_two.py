"""Laws to the bit: signs and powers of two pass through every rounding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.bits import BitwiseCall, Relation, same_bits, subnormals
from kdaverify.checks.laws.law import LIVELY, Law, no_deep_decay
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.problems import Problem
from oracles.inputs import Inputs

VALUE_FACTOR: Final = 2.0**-20
"""Far enough to meet absolute constants, near enough to stay a normal number."""
SCALE_FACTOR: Final = 2.0**-2
"""No smaller: of a folded scale, elements of q / 4 were subnormal in fp16 already, and a right
kernel was rejected (benchmarks.convention_matrix), so that the law is skipped there."""


def _scaled(
    adapter: Adapter, problem: Problem, other: Inputs, factors: Mapping[str, float]
) -> list[Outcome]:
    """Whether the outputs of the other call are those of the problem, times their factors."""
    return same_bits(
        adapter, problem, Relation(BitwiseCall(problem.inputs()), BitwiseCall(other), factors)
    )


def _values_times(adapter: Adapter, problem: Problem, factor: float) -> list[Outcome]:
    own = problem.inputs()
    state = None if own.initial_state is None else factor * own.initial_state
    other = replace(own, v=factor * own.v, initial_state=state)
    return _scaled(adapter, problem, other, {"o": factor, "final_state": factor})


def scaled_values(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 6. Every product and sum has one factor of v or S_0 in it, and a power of two
    passes through every rounding.
    """
    reason = subnormals(adapter.contract(problem.dtype).operands) or subnormals(
        FORMATS[problem.dtype]
    )
    return skipped(reason) if reason else _values_times(adapter, problem, VALUE_FACTOR)


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
    wanted={**LIVELY, "value": ("normal", "powers-of-two", "large")},
)


def scaled_output(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 6 for q, whose factor the scale is."""
    # A folded scale is multiplied into q, which a kernel receives in its own format: in fp16 q / 4
    # then has subnormal elements.
    folded = adapter.conventions.scale == "folded"
    reason = subnormals(
        FORMATS[problem.dtype] if folded else adapter.contract(problem.dtype).operands
    )
    if reason:
        return skipped(reason)
    own = problem.inputs()
    other = replace(own, scale=SCALE_FACTOR * own.factor)
    return _scaled(adapter, problem, other, {"o": SCALE_FACTOR})


SCALED_OUTPUT: Final = Law(
    name="scaled-output",
    statement=(
        "two calls that differ in a power of two of the scale: o differs by it, S_T not at all, to"
        " the bit"
    ),
    section="7, law 6",
    exists_for=(
        "a scale kept from another call, applied twice, to one term alone, or to a part of the"
        " width (B35, O4)"
    ),
    check=scaled_output,
    becomes=lambda problem: (
        problem.replace(scale=SCALE_FACTOR * (problem.scale or problem.K**-0.5)),
    ),
    wanted=LIVELY,
)


def negated_values(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 6 with -1, which passes through every rounding:
    numbers are a sign and a magnitude.
    """
    return _values_times(adapter, problem, -1.0)


NEGATED_VALUES: Final = Law(
    name="negated-values",
    statement="v and S_0 negated: o and S_T are the same bits, negated",
    section="7, law 6",
    exists_for=(
        "terms without v or S_0: stale tiles, memory never written, one-sided clamps, rounding"
        " towards infinity (S11, O10)"
    ),
    check=negated_values,
    wanted=LIVELY,
)


def negated_queries(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: o_t = scale S_t^T q_t is linear in q, and S_t has no q in it."""
    own = problem.inputs()
    return _scaled(adapter, problem, replace(own, q=-own.q), {"o": -1.0})


NEGATED_QUERIES: Final = Law(
    name="negated-queries",
    statement="q negated: o is the same bits, negated, and S_T the same bits",
    section="7, law 7",
    exists_for="queries that reach the state, terms of o without a query (O10)",
    check=negated_queries,
    wanted=LIVELY,
)


def negated_keys(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 7, with -S_0 where there is one:
    k k^T keeps its sign, k v^T and q change theirs.
    """
    own = problem.inputs()
    state = None if own.initial_state is None else -own.initial_state
    other = replace(own, q=-own.q, k=-own.k, initial_state=state)
    return _scaled(adapter, problem, other, {"final_state": -1.0})


NEGATED_KEYS: Final = Law(
    name="negated-keys",
    statement="q, k and S_0 negated: o is the same bits, S_T the same bits, negated",
    section="7, law 7",
    exists_for=(
        "keys that are read where they have no part: rows of other tokens, and terms of odd degree"
        " in k (A4)"
    ),
    check=negated_keys,
    wanted=LIVELY,
)
