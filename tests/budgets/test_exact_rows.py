"""Exact gradients of rows that a kernel normalises: proven also where the projection leaves 1e-8 of
its terms, as of rows of one element.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import mpmath
import pytest
import torch

from kdaverify.adapters.eager import EAGER
from kdaverify.budgets.conversions import received_answer
from kdaverify.budgets.normalised_rows import exact_row_gradient
from kdaverify.problems import Problem
from oracles.adjoint_error import enclosed_gradients
from oracles.enclosure import Enclosure
from oracles.gate_activation import GateActivation
from oracles.gradients import Cotangents
from oracles.row_norm import RowNorm
from tests.faults.triggers import PLAIN

NORM = RowNorm()
CONTRACT = replace(EAGER.contract("bf16"), qk=NORM.name)


def along(x: list[Any], dy: list[Any]) -> list[Any]:
    """dx, to 60 digits."""
    size = sum(value * value for value in x) + mpmath.mpf(NORM.eps)
    inner = sum(a * b for a, b in zip(x, dy, strict=True))
    return [(b * size - a * inner) / size ** mpmath.mpf(1.5) for a, b in zip(x, dy, strict=True)]


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("K", [1, 2, 9])
def test_the_exact_gradient_is_within_a_small_radius(K: int, parallel: bool) -> None:
    numbers = torch.Generator().manual_seed(7)
    x = NORM.there(torch.randn(2, 3, 2, K, generator=numbers).bfloat16().double())
    y = NORM.normalised(x)
    dy = 3 * y if parallel else torch.randn(y.shape, generator=numbers, dtype=torch.float64)
    none = torch.zeros_like(dy)
    found = exact_row_gradient(Enclosure(dy, none, none, none.bool()), y, CONTRACT)
    flat = [part.flatten(0, 2).tolist() for part in (x, dy, found.high, found.radius)]
    with mpmath.workdps(60):
        for row, there, high, radius in zip(*flat, strict=True):
            wanted = along([*map(mpmath.mpf, row)], [*map(mpmath.mpf, there)])
            for exact, value, most in zip(wanted, high, radius, strict=True):
                assert abs(exact - value) <= most <= 1e-12 * abs(value)


def test_radii_behind_a_falling_activation_are_not_negative() -> None:
    problem = Problem.model_validate({**PLAIN, "T": 5, "K": 4, "V": 3, "gate": "mild"})
    inputs = problem.inputs()
    numbers = torch.Generator().manual_seed(3)
    loss = Cotangents(torch.randn(inputs.v.shape, generator=numbers).double(), None)
    answer = enclosed_gradients(inputs, loss)
    activated = replace(EAGER.contract("bf16"), gate=GateActivation("softplus").name)
    found = received_answer(answer, inputs, activated)
    assert bool((found.gradients.dg.radius >= 0).all())
