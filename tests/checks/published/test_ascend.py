"""Ascend's standards, worked out by hand at and around their limits."""

from __future__ import annotations

import math

import pytest
import torch

from kdaverify.checks.published.ascend import LEVELS, ulp
from tests.checks.published.samples import judged_by, says

MANY = 100
ONES, ZEROS = [1.0] * MANY, [0.0] * MANY
T = 2.0**-7
THRESHOLDS = {"bf16": 2.0**-7, "fp16": 2.0**-10, "fp32": 2.0**-13}


def one_off(by: float, times: int = 1, of: float = 1.0) -> list[float]:
    return [of + by] * times + [of] * (MANY - times)


def passed_at(actual: list[float], exact: list[float], benchmark: list[float]) -> tuple[str, ...]:
    return tuple(
        level for level in LEVELS if says(f"ascend-{level}", actual, exact, benchmark) == "pass"
    )


@pytest.mark.parametrize("fmt", THRESHOLDS)
def test_a_mean_relative_error_of_the_threshold_is_too_much_and_half_of_it_is_not(fmt: str) -> None:
    # Of an exact 0 the relative error is |a| / 1e-7.
    at = 1e-7 * THRESHOLDS[fmt]
    assert says("ascend-single", [at], [0.0], stored=fmt) == "fail"
    assert says("ascend-single", [at / 2], [0.0], stored=fmt) == "pass"


def test_one_relative_error_of_ten_thresholds_is_too_much() -> None:
    found = judged_by("ascend-single", one_off(10 * T * 1e-7, of=0.0), ZEROS)
    assert (found.says, found.statistic, found.limit) == ("fail", "MARE", 10 * T)
    assert found.value == pytest.approx(10 * T)
    assert says("ascend-single", one_off(9.9 * T * 1e-7, of=0.0), ZEROS) == "pass"


def test_one_element_of_a_hundred_may_miss_the_mixed_tolerance_and_two_may_not() -> None:
    # t + t |g| is 2^-6 at 1.
    assert says("ascend-mixed", one_off(2.0**-6, MANY), ONES) == "pass"
    assert says("ascend-mixed", one_off(2.0**-6 * 1.01), ONES) == "pass"
    found = judged_by("ascend-mixed", one_off(2.0**-6 * 1.01, 2), ONES)
    assert (found.says, found.statistic, found.value, found.limit) == (
        "fail",
        "matched",
        0.98,
        0.99,
    )


@pytest.mark.parametrize(
    ("exact", "fmt", "most"),
    [
        (1.0, "bf16", 0.25),
        (0.25, "bf16", 0.1),
        (0.25, "fp16", 0.1),
        (0.25, "fp32", 0.01),
        (8192.0, "fp32", 2.0**-5),
    ],
)
def test_the_largest_error_has_an_absolute_limit_or_32_ulps(
    exact: float, fmt: str, most: float
) -> None:
    assert (
        says("ascend-mixed", one_off(0.99 * most, of=exact), [exact] * MANY, stored=fmt) == "pass"
    )
    found = judged_by("ascend-mixed", one_off(1.01 * most, of=exact), [exact] * MANY, stored=fmt)
    assert found.says == "fail"
    assert found.statistic.startswith("largest error")


def test_the_mixed_tolerance_accepts_zeros_for_outputs_below_its_absolute_part() -> None:
    assert says("ascend-mixed", ZEROS, [T] * MANY) == "pass"


def test_ulps_are_those_of_the_format() -> None:
    x = torch.tensor([1.0, 1.99, 2.0, -0.5, 0.0], dtype=torch.float64)
    assert ulp(x, "bf16").tolist() == [2.0**-7, 2.0**-7, 2.0**-6, 2.0**-8, 2.0**-133]
    assert ulp(x[:1], "fp32").tolist() == [2.0**-23]


@pytest.mark.parametrize(
    ("factor", "levels"),
    [(1.19, ("L0", "L1", "L2")), (1.3, ("L0", "L1")), (1.6, ("L0",)), (2.1, ())],
)
def test_mean_errors_decide_the_level(factor: float, levels: tuple[str, ...]) -> None:
    error = 2.0**-6
    passed = tuple(
        level
        for level in ("L0", "L1", "L2")
        if says(f"ascend-{level}", one_off(factor * error, MANY), ONES, one_off(error, MANY))
        == "pass"
    )
    assert passed == levels


@pytest.mark.parametrize(
    ("factor", "levels"),
    [(1.9, ("L0", "L1", "L2")), (4.9, ("L0", "L1")), (9.9, ("L0",)), (10.1, ())],
)
def test_one_large_error_decides_the_level_too(factor: float, levels: tuple[str, ...]) -> None:
    error = 2.0**-10
    many, ones = 10_000, [1.0] * 10_000
    benchmark = [1.0 + error] * many
    actual = [1.0 + factor * error, *benchmark[1:]]
    assert passed_at(actual, ones, benchmark) == levels


def test_a_benchmark_without_an_error_is_no_division_by_zero() -> None:
    assert says("ascend-L2", ONES, ONES, ONES) == "pass"
    found = judged_by("ascend-L2", one_off(2.0**-10), ONES, ONES)
    assert found.says == "fail"
    assert found.value is not None
    assert math.isfinite(found.value)


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [(2, 0, "pass"), (3, 0, "fail"), (4, 2, "pass"), (5, 2, "fail"), (0, 9, "pass")],
)
def test_errors_of_small_values_are_counted(ours: int, theirs: int, verdict: str) -> None:
    found = judged_by(
        "ascend-L2", one_off(2.0**-15, ours, of=0.0), ZEROS, one_off(2.0**-15, theirs, of=0.0)
    )
    assert found.says == verdict
    if verdict == "fail":
        assert (found.statistic, found.value) == (
            "small-value ErrorCount ratio",
            ours / max(theirs, 1),
        )


def test_a_small_value_may_be_wrong_by_the_error_itself_and_one_at_the_threshold_is_not_small() -> (
    None
):
    assert says("ascend-L2", one_off(2.0**-16, MANY, of=0.0), ZEROS, ZEROS) == "pass"
    found = judged_by(
        "ascend-L2", one_off(2.0**-15, 9, of=2.0**-8), [2.0**-8] * MANY, [2.0**-8] * MANY
    )
    assert (found.says, found.statistic) == ("fail", "MARE ratio")


@pytest.mark.parametrize("lost", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_is_right_only_where_the_benchmark_has_the_same(lost: float) -> None:
    actual = [lost, *ONES[1:]]
    assert says("ascend-L0", actual, ONES, ONES) == "fail"
    assert says("ascend-L2", actual, ONES, actual) == "pass"
    assert says("ascend-L0", actual, ONES, [1.0, lost, *ONES[2:]]) == "fail"
    assert says("ascend-mixed", actual, ONES) == says("ascend-single", actual, ONES) == "fail"
