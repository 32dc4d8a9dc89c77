"""Linearity: a backward is linear in the cotangents, to the bit for powers of two, and gives zeros
for zeros (math.md 7, law 13).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdaverify.checks.cotangent_linearity import LAWS
from kdaverify.problems import Bounds, problems
from kdaverify.problems.cotangents import FAR
from kdaverify.verdicts.judge import Judge

SHARE = 1 / 16


@pytest.mark.parametrize("law", LAWS)
@given(data=st.data())
def test_cotangent_linearity(
    judge: Judge, dtype: str, law: str, bounds: Bounds, data: st.DataObject
) -> None:
    smaller: Bounds = {**bounds, "max_cost": SHARE * bounds["max_cost"]}
    scaled = {"exponent": data.draw(st.sampled_from(FAR[dtype]))} if law == "power" else {}
    judge(data.draw(problems(dtype=dtype, **smaller)), law=law, **scaled)
