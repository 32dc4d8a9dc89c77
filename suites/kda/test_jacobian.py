"""Jacobian: all derivatives of all output elements of tiny problems,
within the tolerance of the declared contract.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdaverify.checks.jacobian import most_rows, rows
from kdaverify.problems import problems
from kdaverify.problems.strategies import TINIEST
from kdaverify.verdicts.judge import Judge


@given(data=st.data())
def test_jacobian(judge: Judge, dtype: str, data: st.DataObject) -> None:
    most = most_rows(judge.adapter)
    drawn = problems(dtype=dtype, compiled=judge.adapter.compiled, **TINIEST)
    judge(data.draw(drawn.filter(lambda p: rows(p) <= most)))
