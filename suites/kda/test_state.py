"""Initial and final state: absent, zero, large and asymmetric states enter,
decay and leave as they should.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdaverify.problems import Bounds, problems
from kdaverify.verdicts.judge import Judge


@pytest.mark.parametrize("state", ["absent", "zero", "large", "asymmetric"])
@given(data=st.data())
def test_state(judge: Judge, dtype: str, state: str, bounds: Bounds, data: st.DataObject) -> None:
    judge(data.draw(problems(dtype=dtype, state=state, packed=False, **bounds)))
