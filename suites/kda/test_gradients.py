"""Gradients: dq, dk, dv, dg, dbeta and dS_0 within the tolerance of the declared contract, for
losses on o, on S_T, and on both.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdaverify.problems import Bounds, Problem, problems
from kdaverify.problems.cotangents import EXPONENTS, OF, OVERFLOWING_EXPONENT
from kdaverify.verdicts.judge import Judge

# Certifying gradients costs several times what outputs cost.
SHARE = 1 / 4


@pytest.mark.parametrize("of", OF)
@given(data=st.data())
def test_gradients(judge: Judge, dtype: str, of: str, bounds: Bounds, data: st.DataObject) -> None:
    smaller: Bounds = {**bounds, "max_cost": SHARE * bounds["max_cost"]}
    judge(
        data.draw(problems(dtype=dtype, **smaller)),
        of=of,
        exponent=data.draw(st.sampled_from(EXPONENTS[dtype])),
    )


def test_gradients_that_fit_beside_others_that_overflow(judge: Judge, overflowing: Problem) -> None:
    judge(overflowing, of="both", exponent=OVERFLOWING_EXPONENT)


def test_gradients_of_the_panel(judge: Judge, named_backward: Problem) -> None:
    judge(named_backward, of="both", exponent=0)
