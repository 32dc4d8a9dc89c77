"""FLA's error ratio, at a desk and in CI."""

from __future__ import annotations

import math

import pytest

from tests.checks.published.samples import judged_by, says

ONES = [1.0] * 4


def off(by: float) -> list[float]:
    return [1.0 + by] * 4


@pytest.mark.parametrize(
    ("output", "packed", "limit"),
    [
        ("o", False, 0.005),
        ("final_state", True, 0.005),
        ("dq", False, 0.008),
        ("dq", True, 0.007),
        ("dk", True, 0.008),
        ("dg", True, 0.015),
    ],
)
def test_every_tensor_has_its_limit(output: str, limit: float, *, packed: bool) -> None:
    assert says("fla", off(0.99 * limit), ONES, output=output, packed=packed) == "pass"
    found = judged_by("fla", off(1.01 * limit), ONES, output=output, packed=packed)
    assert (found.says, found.limit) == ("fail", limit)
    assert found.value == pytest.approx(1.01 * limit)


def test_a_tensor_without_a_limit_is_not_judged() -> None:
    assert says("fla", ONES, ONES, output="loss") == "n/a"


def test_a_millionth_passes_whatever_it_is_a_part_of() -> None:
    assert says("fla", [1e-6], [0.0]) == "pass"
    assert says("fla", [2e-6], [0.0]) == "fail"


def test_in_ci_one_of_two_is_enough() -> None:
    assert says("fla-ci", off(0.29), ONES) == "pass"
    assert says("fla-ci", off(0.31), ONES) == "fail"
    assert says("fla-ci", [100.31, *[100.0] * 3], [100.0] * 4) == "pass"
    assert says("fla-ci", [1000.0, *[100.0] * 3], [100.0] * 4) == "fail"


def test_one_wrong_token_in_a_long_tensor_hides_in_the_ratio() -> None:
    many = 100_000
    assert says("fla", [0.0, *[1.0] * (many - 1)], [1.0] * many) == "pass"


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_what_is_not_finite_fails_in_both(lost: float) -> None:
    assert says("fla", [lost, 1.0], ONES[:2]) == says("fla-ci", [lost, 1.0], ONES[:2]) == "fail"
