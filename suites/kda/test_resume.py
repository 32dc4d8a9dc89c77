"""Resume: a run cut anywhere and continued from its saved state gives what the uncut run gives
(math.md 7, law 2).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdaverify.checks.resume import WAYS, cuts_within
from kdaverify.problems import Bounds, problems
from kdaverify.verdicts.judge import Judge


@pytest.mark.parametrize("way", WAYS)
@given(data=st.data())
def test_resume(judge: Judge, dtype: str, way: str, bounds: Bounds, data: st.DataObject) -> None:
    domain = judge.adapter.domain
    problem = data.draw(
        problems(dtype=dtype, packed=False, **bounds).filter(lambda p: bool(cuts_within(p, domain)))
    )
    cut = data.draw(st.sampled_from(cuts_within(problem, domain)))
    judge(problem, cut=cut, way=way)
