"""Prefix causality: no output depends on a later token, however hostile (math.md 7, law 1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdaverify.checks.resume import CUTS
from kdaverify.problems import problems
from kdaverify.verdicts.judge import Judge


@given(data=st.data())
def test_causality(judge: Judge, dtype: str, max_cost: float, data: st.DataObject) -> None:
    problem = data.draw(problems(dtype=dtype, packed=False, max_cost=max_cost).filter(lambda p: p.T > 1))
    judge(problem, cut=data.draw(st.sampled_from([c for c in CUTS if c < problem.T])))
