"""Stages: every stage that is exposed by itself, on exact inputs and on its own, and the equations
between what they wrote.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdaverify.checks.location import FEEDS
from kdaverify.problems import Bounds, problems
from kdaverify.verdicts.judge import Judge


@pytest.mark.parametrize("feed", FEEDS)
@given(data=st.data())
def test_stages(judge: Judge, staged: str, feed: str, bounds: Bounds, data: st.DataObject) -> None:
    judge(data.draw(problems(dtype=staged, **bounds)), feed=feed)
