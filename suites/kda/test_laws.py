"""Laws: relations between runs of one implementation, to the bit or within its tolerance (math.md
7; `kdaverify list laws`).
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdaverify.checks.laws.law import law_problems
from kdaverify.checks.laws.registry import LAWS
from kdaverify.problems import Bounds
from kdaverify.verdicts.judge import Judge


@given(data=st.data())
def test_laws(judge: Judge, lawful: tuple[str, str], bounds: Bounds, data: st.DataObject) -> None:
    name, dtype = lawful
    judge(data.draw(law_problems(LAWS[name], judge.adapter, dtype, bounds)), law=name)
