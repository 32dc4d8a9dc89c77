"""Forward: every output within the tolerance of the declared contract,
on random problems of the operator.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kdaverify.verdicts.judge import Judge


@given(data=st.data())
def test_forward(judge: Judge, dtype: str, bounds: Any, data: st.DataObject) -> None:
    judge(data.draw(judge.adapter.operator.random(judge.adapter, dtype, bounds)))
