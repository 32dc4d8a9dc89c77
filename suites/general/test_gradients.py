"""Gradients of every differentiated input within the tolerance of the declared contract,
for a loss on all outputs, and on each alone.
"""

from __future__ import annotations

from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from kdaverify.operator import BOTH
from kdaverify.verdicts.judge import Judge

QUICK: Final = 0.02
"""Seconds of one reference, by the operator's estimate."""


@given(data=st.data())
def test_gradients(judge: Judge, dtype: str, bounds: Any, data: st.DataObject) -> None:
    problem = data.draw(judge.adapter.operator.random(judge.adapter, dtype, bounds))
    judge(problem, of=data.draw(st.sampled_from((BOTH, *_each(judge, problem)))))


def test_gradients_of_the_panel(judge: Judge, named: Any) -> None:
    judge(named, of=BOTH)
    operator = judge.adapter.operator
    if operator.cost(named) <= QUICK and not operator.has_one_loss(named):
        for of in _each(judge, named):
            judge(named, of=of)


def _each(judge: Judge, problem: Any) -> tuple[str, ...]:
    """The outputs, where there are several: a backward made the gradient of a state where the loss
    depends on the final one alone.
    """
    outputs = judge.adapter.differentiates(problem)
    return outputs if len(outputs) > 1 else ()
