"""Gradients of every differentiated input within the tolerance of the declared contract,
for a loss on all outputs.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kdaverify.operator import BOTH
from kdaverify.verdicts.judge import Judge


@given(data=st.data())
def test_gradients(judge: Judge, dtype: str, bounds: Any, data: st.DataObject) -> None:
    judge(data.draw(judge.adapter.operator.random(judge.adapter, dtype, bounds)), of=BOTH)


def test_gradients_of_the_panel(judge: Judge, named: Any) -> None:
    judge(named, of=BOTH)
