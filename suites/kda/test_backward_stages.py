"""Backward stages: every stage of the backward that is exposed by itself,
on exact inputs and on its own.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdaverify.checks.location import FEEDS
from kdaverify.problems import Bounds, problems
from kdaverify.verdicts.judge import Judge

# There and back, a stage at a time.
SHARE = 1 / 4


@pytest.mark.parametrize("feed", FEEDS)
@given(data=st.data())
def test_backward_stages(
    judge: Judge, staged_backward: str, feed: str, bounds: Bounds, data: st.DataObject
) -> None:
    smaller: Bounds = {**bounds, "max_cost": SHARE * bounds["max_cost"]}
    judge(data.draw(problems(dtype=staged_backward, **smaller)), feed=feed)
