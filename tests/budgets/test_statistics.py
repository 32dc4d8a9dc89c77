"""Statistics of errors, on figures worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kdaverify.budgets import statistics as module
from kdaverify.budgets.constants import RELATIVE_FLOOR
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.statistics import (
    ErrorStatistics,
    rms,
    row_rms,
    statistics,
    statistics_of_runs,
    worst,
)
from oracles.enclosure import Enclosure

FP32 = FORMATS["fp32"]


def exactly(high: Tensor) -> Enclosure:
    return Enclosure(high, torch.zeros_like(high), torch.zeros_like(high), high == 0)


def of(error: list[float], exact: list[float], *, lost: float = 0.0) -> ErrorStatistics:
    """Of one row."""
    return statistics(
        torch.tensor([error], dtype=torch.float64),
        exactly(torch.tensor([exact], dtype=torch.float64)),
        FP32,
        lost=lost,
    )


def test_absolute_statistics_are_those_of_the_definition() -> None:
    error = torch.tensor([[[3.0, -4.0], [0.0, 1.0]]], dtype=torch.float64)
    found = statistics(error, exactly(torch.ones_like(error)), FP32)
    assert found.rms == pytest.approx(math.sqrt(26 / 4))
    assert found.largest == 4
    assert found.rows.tolist() == pytest.approx([math.sqrt(25 / 2), math.sqrt(1 / 2)])
    assert [found.value("row", row) for row in (0, 1)] == found.rows.tolist()
    assert found.value("largest", 1) == 4


def test_relative_errors_are_taken_above_the_floor_alone() -> None:
    tiny, above = RELATIVE_FLOOR, RELATIVE_FLOOR * 2
    assert RELATIVE_FLOOR == 2.0**-120
    assert of([1.0, above / 2], [tiny, above]).tail == 0.5
    assert of([1.0, 1.0], [0.0, tiny]).median == of([1.0, 1.0], [0.0, tiny]).tail == 0.0


def test_relative_errors_divide_by_a_normal_number_at_least() -> None:
    small = float(FORMATS["fp16"].min_normal) / 4
    error, exact = (torch.tensor([[x]], dtype=torch.float64) for x in (small, small))
    assert statistics(error, exactly(exact), FORMATS["fp16"]).tail == 0.25


def test_quantiles_are_the_smallest_value_that_a_share_does_not_exceed() -> None:
    found = of([float(i) for i in range(1, 201)], [1.0] * 200)
    assert (found.median, found.tail) == (100.0, 198.0)
    assert of([7.0], [1.0]).median == of([7.0], [1.0]).tail == 7.0


def test_what_underflow_takes_is_left_out_of_relative_errors_alone() -> None:
    found = of([0.5, 0.125], [1.0, 1.0], lost=0.25)
    assert (found.median, found.tail, found.largest) == (0.0, 0.25, 0.5)


def test_errors_of_what_cancels_are_relative_to_its_terms() -> None:
    error, exact = (
        torch.tensor([[1.0, 1.0]], dtype=torch.float64),
        torch.tensor([[2.0, 2.0]], dtype=torch.float64),
    )
    found = statistics(
        error, exactly(exact), FP32, terms=torch.tensor([[1.0, 8.0]], dtype=torch.float64)
    )
    assert (found.median, found.tail) == (0.125, 0.5)


def test_an_empty_output_has_no_error() -> None:
    empty = torch.zeros(0, 4, dtype=torch.float64)
    found = statistics(empty, exactly(empty), FP32)
    assert (found.rms, found.largest, found.median, found.tail, found.value("row", 0)) == (
        0,
        0,
        0,
        0,
        0,
    )
    assert rms(empty) == 0
    assert row_rms(torch.full((2, 3, 4), 2.0)).tolist() == [2.0] * 6


@pytest.mark.parametrize("at_once", [1, 12, 1000])
def test_runs_measured_together_are_measured_as_each_alone(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ELEMENTS_AT_ONCE", at_once)
    rng = torch.Generator().manual_seed(5)
    exact, *errors = torch.randn(6, 2, 3, dtype=torch.float64, generator=rng)
    exact[0, 1] = 0.0
    for error, found in zip(
        errors, statistics_of_runs(errors, exactly(exact), FP32, lost=0.01), strict=True
    ):
        relative = sorted(
            (max(0.0, abs(e) - 0.01) / abs(x))
            for e, x in zip(error.flatten().tolist(), exact.flatten().tolist(), strict=True)
            if x
        )
        assert found.rms == pytest.approx(rms(error))
        assert found.largest == float(error.abs().max())
        assert torch.equal(found.rows, row_rms(error))
        assert (found.median, found.tail) == pytest.approx((relative[2], relative[4]))
        assert found.bias == pytest.approx(abs(float((error * exact).sum() / exact.square().sum())))


@pytest.mark.parametrize("exponent", [-1070, -600, 0, 600])
def test_no_square_underflows_or_overflows(exponent: int) -> None:
    error = torch.tensor([[3.0, 4.0], [6.0, 8.0]], dtype=torch.float64) * 2.0**exponent
    found = statistics(error, exactly(torch.ones_like(error)), FP32)
    assert (found.rows / 2.0**exponent).tolist() == pytest.approx(
        [math.sqrt(12.5), math.sqrt(50.0)], rel=0.1
    )
    assert found.rms / 2.0**exponent == pytest.approx(math.sqrt(31.25), rel=0.1)


def test_errors_without_limit_stay_so() -> None:
    error = torch.tensor([[math.inf, 1.0], [1.0, 1.0]], dtype=torch.float64)
    assert rms(error) == math.inf
    assert row_rms(error).tolist() == [math.inf, 1.0]


def test_the_worst_of_several_is_taken_statistic_by_statistic() -> None:
    one = ErrorStatistics(1.0, 5.0, torch.tensor([1.0, 4.0]), 0.1, 0.6, 0.0)
    other = ErrorStatistics(2.0, 4.0, torch.tensor([3.0, 2.0]), 0.2, 0.5, 0.3)
    both = worst([one, other])
    assert (both.rms, both.largest, both.median, both.tail, both.bias) == (2.0, 5.0, 0.2, 0.6, 0.3)
    assert both.rows.tolist() == [3.0, 4.0]
