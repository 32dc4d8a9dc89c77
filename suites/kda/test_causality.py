"""Prefix causality: no output depends on a later token, however hostile (math.md 7, law 1)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdaverify.checks.resume import CUTS
from kdaverify.problems import Bounds, problems
from kdaverify.verdicts.judge import Judge


@given(data=st.data())
def test_causality(judge: Judge, dtype: str, bounds: Bounds, data: st.DataObject) -> None:
    problem = data.draw(problems(dtype=dtype, packed=False, **bounds).filter(lambda p: p.T > 1))
    judge(problem, cut=data.draw(st.sampled_from([c for c in CUTS if c < problem.T])))
