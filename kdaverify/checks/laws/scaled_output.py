"""The scale times a power of two: o times it, to the bit, and the same S_T."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.bits import BitwiseCall, Relation, same_bits, subnormals
from kdaverify.checks.laws.law import LIVELY, Law
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.problems import Problem

FACTOR: Final = 2.0**-2


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
    return same_bits(
        adapter,
        problem,
        Relation(
            BitwiseCall(own), BitwiseCall(replace(own, scale=FACTOR * own.factor)), {"o": FACTOR}
        ),
    )


def _scaled(problem: Problem) -> tuple[Problem, ...]:
    return (problem.replace(scale=FACTOR * (problem.scale or problem.K**-0.5)),)


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
    becomes=_scaled,
    draws=LIVELY,
)
