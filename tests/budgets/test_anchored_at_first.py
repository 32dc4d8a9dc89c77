"""Factors relative to first rows as they are reach exp 75, and overflow with large incoming
gradients: such gradients are not judged where the row is free, and judged where it is declared.
"""

from __future__ import annotations

import pytest

from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.contract import contract_from_name
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.gradient_standard import gradient_standard
from kdaverify.problems import Problem
from kdaverify.problems.cotangents import cotangents
from oracles.tensors import GRADIENTS

PROBLEM = Problem(
    B=2,
    T=32,
    H=1,
    HV=1,
    K=32,
    V=32,
    dtype="fp32",
    gate="mixed",
    gate_range=(-5.0, None),
    key="alternating",
    beta="uniform",
    state="random",
    value="normal",
    seed=50856,
)


@pytest.mark.parametrize(
    ("contract", "exponent", "unjudged"),
    [
        ("chunk16-fp32-anchored", 20, {"dq", "dg"}),
        ("chunk16-fp32-anchored", 0, set[str]()),
        ("chunk16-fp32-anchored[anchor:middle]", 20, set[str]()),
    ],
)
def test_gradients_that_overflow_at_first_rows_are_not_judged(
    contract: str, exponent: int, unjudged: set[str]
) -> None:
    inputs, io = PROBLEM.inputs(), FORMATS["fp32"]
    declared, given = contract_from_name(contract), cotangents(PROBLEM, "both", exponent)
    made = emulate_gradients(inputs, given, declared, io, single=True)
    found = gradient_standard(inputs, given, declared, io, made)
    assert {*GRADIENTS} - {*found.budgets} == unjudged
