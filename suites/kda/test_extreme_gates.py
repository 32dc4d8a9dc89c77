"""Extreme gates: hard resets, deep decay and spread channels inside packs,
on coherent keys, with a state to lose.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdaverify.problems import Bounds, problems
from kdaverify.problems.regimes.gate import EXTREME
from kdaverify.verdicts.judge import Judge


@pytest.mark.parametrize("extreme", EXTREME)
@given(data=st.data())
def test_extreme_gates(
    judge: Judge, dtype: str, extreme: str, bounds: Bounds, data: st.DataObject
) -> None:
    drawn = problems(
        dtype=dtype,
        gate=extreme,
        state=("random", "large"),
        key=("coherent-0.9", "identical"),
        **bounds,
    )
    judge(data.draw(drawn))
