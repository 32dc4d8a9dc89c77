"""Packing: a sequence gives the same results packed, alone,
and in a pack of another order (math.md 7, law 3).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdaverify.checks.packing import ARRANGEMENTS
from kdaverify.problems import Bounds, problems
from kdaverify.verdicts.judge import Judge


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@given(data=st.data())
def test_packing(
    judge: Judge, dtype: str, arrangement: str, bounds: Bounds, data: st.DataObject
) -> None:
    judge(data.draw(problems(dtype=dtype, packed=True, **bounds)), arrangement=arrangement)
