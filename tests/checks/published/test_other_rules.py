"""Rules of other projects, worked out by hand at and around their limits."""

from __future__ import annotations

import math

import pytest

from tests.checks.published.samples import judged_by, says

LINE = [float(i) for i in range(10)]


def test_flash_attention_allows_twice_the_largest_error_of_the_benchmark() -> None:
    assert says("flash-attention", [1.5, 2.0], [1.0, 2.0], [1.0, 2.25]) == "pass"
    found = judged_by("flash-attention", [1.0, 2.75], [1.0, 2.0], [1.0, 2.25])
    assert (found.says, found.value, found.limit) == ("fail", 0.75, 0.5)


def test_attention_gym_adds_a_rounding_of_the_largest_output() -> None:
    # eps of bf16 is 2^-7, the largest output 2: the band is 2^-6.
    assert says("attention-gym", [1.0 + 2.0**-5, 2.0], [1.0, 2.0], [1.0, 2.0]) == "pass"
    assert says("attention-gym", [1.0 + 2.0**-4, 2.0], [1.0, 2.0], [1.0, 2.0]) == "fail"
    assert says("attention-gym", [1.0 + 2.0**-4, 2.0], [1.0, 2.0], [1.0 + 2.0**-6, 2.0]) == "pass"


@pytest.mark.parametrize(
    ("fmt", "error"), [("bf16", 1.6e-2), ("fp16", 1e-3), ("fp32", 1.13e-5), ("fp64", 1.9e-7)]
)
def test_torch_testing_takes_the_tolerance_of_the_output_itself(fmt: str, error: float) -> None:
    assert says("torch-testing", [1.0 + error], [1.0], stored=fmt) == "pass"
    assert says("torch-testing", [1.0 + 1.1 * error], [1.0], stored=fmt) == "fail"


@pytest.mark.parametrize("rule", ["kernelbench", "backendbench"])
def test_an_output_that_is_too_large_has_more_room_than_one_too_small(rule: str) -> None:
    # 1e-2 + 1e-2 |a| is 0.0202 at 1.02 and 0.0198 at 0.98.
    assert says(rule, [1.02], [1.0]) == "pass"
    assert says(rule, [0.98], [1.0]) == "fail"


def test_kernelbench_takes_the_tolerance_of_the_problem() -> None:
    assert says("kernelbench", [1.005], [1.0], dtype="bf16", stored="fp32") == "pass"
    assert says("kernelbench", [1.005], [1.0], dtype="fp32", stored="fp32") == "fail"
    assert says("backendbench", [1.005], [1.0], dtype="fp32", stored="fp32") == "pass"
    assert says("kernelbench-hard", [1.09], [1.0]) == "pass"
    assert says("kernelbench-hard", [1.09], [1.0], dtype="fp16") == "fail"


@pytest.mark.parametrize(
    ("exact", "actual", "verdict"),
    [(100.0, 100.9, "pass"), (1e-3, 1e-2, "pass"), (1.0, 1.011, "fail")],
)
def test_flashinfer_bench_wants_both_errors_large(
    exact: float, actual: float, verdict: str
) -> None:
    assert says("flashinfer-bench", [actual, 1.0], [exact, 1.0]) == verdict


def test_a_correlation_sees_no_scale() -> None:
    assert says("tt-metal-pcc", [2 * x for x in LINE], LINE) == "pass"
    assert says("tt-metal-pcc", [-x for x in LINE], LINE) == "fail"
    assert says("tt-metal-pcc", [x * x for x in LINE], LINE) == "fail"


def test_a_correlation_with_zeros_fails_and_one_with_any_other_constant_passes() -> None:
    assert says("tt-metal-pcc", [0.0] * 10, LINE) == "fail"
    assert says("tt-metal-pcc", [0.0] * 10, [0.0] * 10) == "pass"
    assert (
        says("tt-metal-pcc", [2.0] * 10, [3.0] * 10)
        == says("tt-metal-pcc", [2.0] * 10, LINE)
        == "pass"
    )


def test_a_correlation_takes_what_is_not_finite_for_zero() -> None:
    assert says("tt-metal-pcc", [math.nan, *LINE[1:]], LINE) == "pass"
    assert says("tt-metal-pcc", [math.nan] * 10, LINE) == "fail"


@pytest.mark.parametrize(
    "rule",
    [
        "flash-attention",
        "attention-gym",
        "torch-testing",
        "kernelbench",
        "kernelbench-hard",
        "backendbench",
        "flashinfer-bench",
    ],
)
@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_what_is_not_finite_fails(rule: str, lost: float) -> None:
    assert says(rule, [lost, 1.0], [1.0, 1.0], [0.5, 1.0]) == "fail"
