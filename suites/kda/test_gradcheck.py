"""Gradcheck: first and second derivatives
of a float64 kernel against differences of its own outputs.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdaverify.checks.gradcheck import ORDERS
from kdaverify.problems import problems
from kdaverify.problems.strategies import INSIDE, TINY
from kdaverify.verdicts.judge import Judge


@pytest.mark.parametrize("order", ORDERS)
@given(data=st.data())
def test_gradcheck(judge: Judge, double: str, order: str, data: st.DataObject) -> None:
    judge(data.draw(problems(dtype=double, **TINY, **INSIDE)), order=order)
