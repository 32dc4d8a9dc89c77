"""Forward: o and S_T within the tolerance of the declared contract,
on random problems, gate regime by gate regime.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdaverify.problems import Bounds, problems
from kdaverify.verdicts.judge import Judge


@given(data=st.data())
def test_forward(judge: Judge, dtype: str, gate: str, bounds: Bounds, data: st.DataObject) -> None:
    judge(data.draw(problems(dtype=dtype, gate=gate, packed=False, **bounds)))
