"""Partial sums of gradients of parameters that are rounded to 16 bits are found, where no contract
says so; right ports in other conventions, and those that declare it, pass.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from kdaverify.checks.calls.questions import questions
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from tests.operators import convolutions, norms

RULE: Final = "long-sums-backward"
WRONG: Final = {"CONV-sums": convolutions, "NORM-sums": norms}
RIGHT_ONES: Final = {**convolutions.RIGHT_ONES, **norms.RIGHT_ONES}


def statuses_by_format(adapter: Any) -> dict[str, set[Status]]:
    """Of what smoke tests by the rule."""
    return {
        test.problem.dtype: {
            outcome.status for outcome in check("calls", adapter, test.problem, test.detail)
        }
        for test in questions(adapter, "smoke")
        if test.rule.name == RULE
    }


@pytest.mark.parametrize("name", WRONG)
def test_stored_sums_are_found_in_every_format(name: str) -> None:
    adapter = WRONG[name].faulty(name)
    found = statuses_by_format(adapter)
    assert {*found} == {*adapter.dtypes}
    assert all(Status.FAIL in said for said in found.values())


@pytest.mark.rotates
@pytest.mark.parametrize("name", RIGHT_ONES)
def test_right_ones_pass(name: str) -> None:
    found = statuses_by_format(RIGHT_ONES[name])
    assert found
    assert {status for said in found.values() for status in said} <= {Status.PASS}
