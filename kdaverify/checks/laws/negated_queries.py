"""Queries negated: o negated, to the bit, and the same S_T."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.bits import BitwiseCall, Relation, same_bits
from kdaverify.checks.laws.law import LIVELY, Law
from kdaverify.checks.outcome import Outcome
from kdaverify.problems import Problem


def negated_queries(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: o_t = scale S_t^T q_t is linear in q, and S_t has no q in it."""
    own = problem.inputs()
    return same_bits(
        adapter,
        problem,
        Relation(BitwiseCall(own), BitwiseCall(replace(own, q=-own.q)), {"o": -1.0}),
    )


NEGATED_QUERIES: Final = Law(
    name="negated-queries",
    statement="q negated: o is the same bits, negated, and S_T the same bits",
    section="7, law 7",
    exists_for="queries that reach the state, terms of o without a query (O10)",
    check=negated_queries,
    draws=LIVELY,
)
