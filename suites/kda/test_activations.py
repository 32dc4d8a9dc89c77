"""Activations: the gate activations, beta and l2norm that are exposed by themselves, forward and
every gradient, for any finite input.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdaverify.adapters.base import is_interpreted
from kdaverify.operators.pointwise.cases import (
    NAMES,
    PAST_16_BITS,
    SHAPES,
    activation_panel,
    activation_problems,
)
from kdaverify.operators.pointwise.problem import Op
from kdaverify.verdicts.judge import Judge


@given(data=st.data())
def test_activations(judge: Judge, activated: tuple[Op, str], data: st.DataObject) -> None:
    judge(data.draw(activation_problems(*activated)))


@pytest.mark.parametrize("name", NAMES)
def test_activations_of_the_panel(judge: Judge, activated: tuple[Op, str], name: str) -> None:
    judge(activation_panel(name, *activated))


@pytest.mark.parametrize("name", SHAPES)
def test_activations_of_shapes(judge: Judge, activated: tuple[Op, str], name: str) -> None:
    op, dtype = activated
    # No interpreter has an axis of a grid that ends, and what ends there does in every format.
    if name != PAST_16_BITS or (
        dtype == judge.adapter.dtypes[-1] and not is_interpreted(judge.adapter)
    ):
        judge(activation_panel(name, op, dtype))
