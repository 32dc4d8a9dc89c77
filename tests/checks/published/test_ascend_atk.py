"""The double benchmark of Ascend's test kit: floors, error balance,
and its own way with what is not finite.
"""

from __future__ import annotations

import math

import pytest

from tests.checks.published.samples import judged_by, says

MANY = 100
ONES = [1.0] * MANY
FLOOR, BALANCE = 2.0**-8, 2.0**-7


@pytest.mark.parametrize(("relative", "verdict"), [(9.9, "pass"), (10.1, "fail")])
def test_errors_below_the_floor_of_the_benchmark_do_not_count(
    relative: float, verdict: str
) -> None:
    found = judged_by("ascend-atk", [1.0 + relative * FLOOR, *ONES[1:]], ONES, ONES)
    assert (found.says, found.statistic) == (verdict, "largest relative error ratio")


def test_errors_of_one_sign_are_out_of_balance_even_where_the_benchmark_is_as_wrong() -> None:
    benchmark = [1.02, 0.98] * (MANY // 2)
    assert says("ascend-atk", benchmark[::-1], ONES, benchmark) == "pass"
    found = judged_by("ascend-atk", [1.02] * MANY, ONES, benchmark)
    assert (found.says, found.statistic, found.limit) == ("fail", "error balance", BALANCE)
    assert found.value == pytest.approx(0.02)


@pytest.mark.parametrize(
    ("exact", "off", "verdict"),
    [(0.0, BALANCE, "pass"), (0.0, 1.01 * BALANCE, "fail"), (4.0, 3.9 * BALANCE, "pass")],
)
def test_the_balance_is_absolute_below_1_and_relative_above(
    exact: float, off: float, verdict: str
) -> None:
    found = judged_by("ascend-atk", [exact + off] * MANY, [exact] * MANY, [exact - off] * MANY)
    assert found.says == verdict


def test_a_benchmark_that_is_not_finite_passes_everything_and_a_kernel_that_is_not_fails() -> None:
    lost = [math.inf, *ONES[1:]]
    assert says("ascend-atk", [0.0] * MANY, ONES, lost) == "pass"
    assert says("ascend-atk", lost, ONES, ONES) == "fail"
