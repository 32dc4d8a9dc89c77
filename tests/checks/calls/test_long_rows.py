"""Rows longer than fp16's sums of squares hold: what clamps them is found by this rule alone, and
kernels that normalise rows of any length pass.
"""

from __future__ import annotations

from typing import Final

import pytest
import torch

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER
from kdaverify.checks.calls import questions
from kdaverify.checks.calls.long_rows import RULES
from kdaverify.checks.forward import forward
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.faults.planted.catalogue import PLANTED
from kdaverify.faults.planted.fused_padding import OF_ROWS
from oracles.row_norm import LONG, POWERS, RowNorm

FAULTS: Final = [name for name, fault in PLANTED.items() if fault.trigger in OF_ROWS]


def statuses(adapter: Adapter) -> set[Status]:
    return {
        outcome.status
        for one in questions(adapter, "smoke")
        if one.rule in RULES
        for outcome in check("calls", adapter, one.problem, one.detail)
    }


@pytest.mark.parametrize("name", FAULTS)
def test_it_is_found_by_the_rule_alone(name: str) -> None:
    wrong, right = PLANTED[name].adapter(), PLANTED[name].right()
    assert any(status.rejects for status in statuses(wrong))
    assert statuses(right) == {Status.PASS}
    _, problem = wrong.operator.panel(wrong, "smoke")[0]
    assert {outcome.status for outcome in forward(wrong, problem)} == {Status.PASS}


def test_a_kernel_that_takes_unit_rows_is_not_tested() -> None:
    assert not any(one.rule in RULES for one in questions(EAGER, "nightly"))


def test_fp16_holds_the_rows_and_not_their_sums_of_squares() -> None:
    rows = torch.eye(4, dtype=torch.float64)
    assert all(RowNorm().there(rows[:, None]).square().sum(-1).max() < 65504 for _ in POWERS)
    long = RowNorm(powers=LONG).there(rows[:2])
    assert bool((long.square().sum(-1) > 65504).all()) and bool((long.abs() < 65504).all())
