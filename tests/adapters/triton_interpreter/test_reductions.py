"""Reductions in the order compiled code has."""

from __future__ import annotations

import numpy as np
import pytest

from kdaverify.adapters.triton_interpreter.reductions import halving, running


def test_a_tree_adds_halves_and_rounds_every_time() -> None:
    """In fp16, 2048 + 1 = 2048: in order the ones are lost one by one,
    in a tree they meet first.
    """
    values = np.array([2048, 1, 1, 1, 1, 1, 1, 1], dtype=np.float16)
    # (2048 + 1) + 1 rounds both away: [2048, 1+1, 1+1, 1+1], then [2048 + 2, 4]
    assert halving(values, 0, np.add) == 2048 + 6
    assert running(values, 0, np.add)[-1] == 2048


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_axis_is_the_one_tested_for(axis: int) -> None:
    values = np.arange(32, dtype=np.float32).reshape(4, 8)
    assert np.array_equal(halving(values, axis, np.add), values.sum(axis))
    assert np.array_equal(running(values, axis, np.add), values.cumsum(axis))
    assert not np.array_equal(running(values, axis, np.add), values.cumsum(1 - axis % 2))


def test_running_leaves_its_input() -> None:
    values = np.ones((2, 4), dtype=np.float32)
    running(values, 1, np.add)
    assert (values == 1).all()
