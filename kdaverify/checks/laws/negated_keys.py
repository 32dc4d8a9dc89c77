"""Queries, keys and initial state negated: the same o, S_T negated, to the bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.bits import BitwiseCall, Relation, same_bits
from kdaverify.checks.laws.law import LIVELY, Law
from kdaverify.checks.outcome import Outcome
from kdaverify.problems import Problem


def negated_keys(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Math: law 7, with -S_0 where there is one:
    k k^T keeps its sign, k v^T and q change theirs.
    """
    own = problem.inputs()
    state = None if own.initial_state is None else -own.initial_state
    other = replace(own, q=-own.q, k=-own.k, initial_state=state)
    return same_bits(
        adapter, problem, Relation(BitwiseCall(own), BitwiseCall(other), {"final_state": -1.0})
    )


NEGATED_KEYS: Final = Law(
    name="negated-keys",
    statement="q, k and S_0 negated: o is the same bits, S_T the same bits, negated",
    section="7, law 7",
    exists_for=(
        "keys that are read where they have no part: rows of other tokens, and terms of odd degree"
        " in k (A4)"
    ),
    check=negated_keys,
    draws=LIVELY,
)
