"""Sizes of smaller problems close in on the one at which a kernel begins to fail."""

from __future__ import annotations

import pytest

from kdaverify.operators.sizes import shrunk


def tries(size: int, first_wrong: int) -> tuple[int, int]:
    """The size that is reached, and the number of problems that are run."""
    count, reached = 0, size
    seen = {size}
    while True:
        for smaller in shrunk(reached):
            if smaller in seen:
                continue
            seen.add(smaller)
            count += 1
            if smaller >= first_wrong:
                reached = smaller
                break
        else:
            return reached, count


@pytest.mark.parametrize("first_wrong", [1, 3, 65, 1025, 1099])
def test_the_first_size_that_fails_is_reached_in_few_steps(first_wrong: int) -> None:
    reached, count = tries(1100, first_wrong)
    assert reached == first_wrong and count < 60


def test_small_sizes_are_tried_one_by_one() -> None:
    assert shrunk(4) == [1, 2, 3] and shrunk(1) == [] and shrunk(2, least=0) == [0, 1]
