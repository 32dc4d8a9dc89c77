"""Laws of whole layers: the same tokens in another schedule, layout or batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdaverify.operators.layer.operator import LAYER, applicable
from kdaverify.operators.layer.problem import LayerProblem
from kdaverify.verdicts.judge import Judge


def test_laws(judge: Judge, lawful: tuple[str, LayerProblem]) -> None:
    name, problem = lawful
    judge(problem, law=name)


@given(data=st.data())
def test_random_laws(judge: Judge, dtype: str, data: st.DataObject) -> None:
    law = data.draw(st.sampled_from(applicable(judge.adapter)))
    problems = LAYER.random(judge.adapter, dtype, None)
    tested = LAYER.laws()[law].untestable
    judge(data.draw(problems.filter(lambda problem: tested(problem) is None)), law=law)
