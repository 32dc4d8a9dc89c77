"""Laws that the operator lists: relations between calls of one implementation, to the bit or within
the bound of every element.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kdaverify.verdicts.judge import Judge


@given(data=st.data())
def test_laws(judge: Judge, lawful: tuple[str, str], data: st.DataObject) -> None:
    name, dtype = lawful
    operator = judge.adapter.operator
    problems = operator.random(judge.adapter, dtype, operator.laws()[name].wanted)
    judge(
        data.draw(
            problems.filter(lambda problem: operator.laws()[name].untestable(problem) is None)
        ),
        law=name,
    )
