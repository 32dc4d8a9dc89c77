"""Options: in-kernel gates, normalisation, other chunk sizes and state orders give what the plain call gives."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdaverify.problems import Bounds, problems
from kdaverify.verdicts.judge import Judge

# What every option can express: gates an activation reaches, beta a sigmoid reaches.
GATES = ("log-sigmoid", "slow", "mild")


@given(data=st.data())
def test_options(judge: Judge, dtype: str, variant: str, bounds: Bounds, data: st.DataObject) -> None:
    judge(data.draw(problems(dtype=dtype, gate=GATES, beta="uniform", **bounds)), variant=variant)
