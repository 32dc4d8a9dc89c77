"""Self-consistency: the backward of a low-precision kernel is the derivative
of its own forward, along random directions.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdaverify.problems import Bounds, problems
from kdaverify.verdicts.judge import Judge

# Each case runs the kernel on sixteen moved calls.
SHARE = 1 / 8


@given(data=st.data())
def test_self_consistency(judge: Judge, dtype: str, bounds: Bounds, data: st.DataObject) -> None:
    smaller: Bounds = {**bounds, "max_cost": SHARE * bounds["max_cost"]}
    judge(data.draw(problems(dtype=dtype, **smaller)))
