"""What `allow` makes of an ensemble's errors, on figures worked out by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.bias import biases
from kdaverify.budgets.budget import (
    Budget,
    EnsembleErrors,
    Runs,
    allow,
    ensemble_errors,
    sharp_rms,
)
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.statistics import ErrorStatistics
from oracles.enclosure import Enclosure

BF16 = FORMATS["bf16"]
UNIT = 2.0**-8
EXACT = torch.tensor([[3.0, 4.0], [1.0, 2.0]], dtype=torch.float64)
SIZE, ROWS = math.sqrt(7.5), [math.sqrt(12.5), math.sqrt(2.5)]


def pair(first: float, second: float) -> Tensor:
    return torch.tensor([first, second], dtype=torch.float64)


def exactly(value: Tensor) -> Enclosure:
    return Enclosure(value, torch.zeros_like(value), torch.zeros_like(value), value == 0)


ERRORS = EnsembleErrors(
    worst=ErrorStatistics(rms=0.5, largest=1.0, rows=pair(0.4, 0.6), median=0.03, tail=0.07),
    margin=ErrorStatistics(rms=1.2, largest=3.0, rows=pair(1.1, 4.0), median=1.3, tail=1.4),
    rounded=Runs((0.2, 0.3), (0.01, 0.02)),
    drawn=Runs((0.4, 0.4), (0.003, 0.004)),
    plain=EXACT,
)
NOTHING = EnsembleErrors(
    worst=ErrorStatistics(0.0, 0.0, pair(0.0, 0.0), 0.0, 0.0),
    margin=ErrorStatistics(1.0, 1.0, pair(1.0, 1.0), 1.0, 1.0),
    rounded=Runs((0.0,), (0.0,)),
    drawn=Runs((0.0, 0.0), (0.0, 0.0)),
    plain=EXACT,
)


def allowed(
    errors: EnsembleErrors = ERRORS, *, sharp: bool = True, lost: float = 0.0, floor: float = 0.0
) -> ErrorStatistics:
    return allow(
        exactly(EXACT), errors, io=BF16, unit=UNIT, lost=lost, floor=floor, sharp=sharp
    ).allowed


def test_every_limit_is_its_factor_times_margin_and_worst() -> None:
    found = allowed()
    assert found.rms == pytest.approx(1.1 * 0.4), (
        "draws that do not scatter leave 1.1 times the mean draw"
    )
    assert found.largest == pytest.approx(1.25 * 3.0 * 1.0)
    # The first row has the output's relative error, which is more than its own; the second a margin
    # wider than the factor.
    assert found.rows.tolist() == pytest.approx(
        [2.5 * ROWS[0] * 0.5 / SIZE + UNIT / 4 * ROWS[0], 1.25 * 4.0 * 0.6 + UNIT / 4 * ROWS[1]]
    )
    assert found.median == pytest.approx(1.5 * 1.3 * 0.03 + UNIT / 2)
    assert found.tail == pytest.approx(2.0 * 1.4 * 0.07 + UNIT)
    assert found.bias == pytest.approx(0.02 + 5 * 0.005 / math.sqrt(2))


def test_the_margin_of_a_row_is_less_what_the_row_was_raised_by() -> None:
    ones = torch.ones(3, 1, dtype=torch.float64)

    def run(*errors: float) -> Tensor:
        return ones + torch.tensor(errors, dtype=torch.float64)[:, None]

    # Deviations / means of the samples' rows with errors are 1 / sqrt(2) and 0: typical rows have
    # 1 + 3 / 2 times the mean of 0.02. The last row is exact in every run.
    drawn = [run(0.01, 0.02, 0.0), run(0.03, 0.02, 0.0)]
    found = ensemble_errors(exactly(ones), [run(0.06, 0.02, 0.0)], drawn, io=BF16, lost=0.0)
    assert found.worst.rows.tolist() == pytest.approx([0.06, 0.05, 0.0])
    assert found.margin.rows.tolist() == pytest.approx([1 + 3 / math.sqrt(2), 0.02 / 0.05, 1.0])


def test_a_single_product_gets_factor_and_margin_both() -> None:
    found = allowed(sharp=False)
    assert found.rms == pytest.approx(1.25 * 1.2 * 0.5)
    assert found.largest == pytest.approx(2.5 * 3.0 * 1.0)
    assert found.rows[1].item() == pytest.approx(2.5 * 4.0 * 0.6 + UNIT / 4 * ROWS[1])


def test_an_exact_ensemble_leaves_what_rounding_the_result_costs() -> None:
    found = allowed(NOTHING)
    assert found.rms == pytest.approx(1.25 * 0.41 * UNIT * SIZE)
    assert found.largest == pytest.approx(2.5 * UNIT * 4.0 / 2)
    assert found.rows.tolist() == pytest.approx([(2.5 * 0.41 + 0.25) * UNIT * row for row in ROWS])
    assert (found.median, found.tail) == (UNIT / 2, UNIT)
    assert found.bias == pytest.approx(4 * 0.41 * UNIT / 2)


def test_and_what_underflow_and_cancelling_sums_may_take() -> None:
    found = allowed(NOTHING, lost=0.25, floor=0.5)
    assert found.rms == pytest.approx(1.25 * 0.75)
    assert found.largest == pytest.approx(2.5 * 0.75)
    assert found.rows.tolist() == pytest.approx(
        [2.5 * max(0.75, 0.75 / SIZE * row) + UNIT / 4 * row for row in ROWS]
    )
    assert found.bias == pytest.approx(0.75 / SIZE)


@pytest.mark.parametrize(("share", "judged"), [(0.99, True), (1.0, False), (40.0, False)])
def test_no_bias_is_tested_of_an_output_that_conforming_kernels_miss_by_its_own_size(
    *, share: float, judged: bool
) -> None:
    found = allowed(replace(ERRORS, worst=replace(ERRORS.worst, rms=share * SIZE)))
    assert (found.bias < 0.1) is judged
    assert math.isfinite(found.rms)


def test_the_slack_of_a_row_is_relative_to_what_moved_in_it() -> None:
    moved = torch.tensor([[0.0, 0.0], [8.0, 8.0]], dtype=torch.float64)
    still = allow(exactly(EXACT), NOTHING, io=BF16, unit=UNIT, lost=0.0, moved=moved).allowed
    assert (still.rows - 2.5 * 0.41 * UNIT * pair(*ROWS)).tolist() == pytest.approx(
        [0.0, UNIT / 4 * 8.0]
    )


def test_where_zero_is_proven_throughout_nothing_is_allowed() -> None:
    found = allow(
        exactly(torch.zeros(2, 2)), NOTHING, io=BF16, unit=UNIT, lost=0.25, floor=0.5
    ).allowed
    assert (found.rms, found.largest, found.rows.tolist()) == (0.0, 0.0, [0.0, 0.0])


def test_an_empty_output_is_allowed_nothing_and_needs_nothing() -> None:
    empty = torch.zeros(0, 2, dtype=torch.float64)
    nothing = replace(
        NOTHING,
        worst=replace(NOTHING.worst, rows=empty[:, 0]),
        margin=replace(NOTHING.margin, rows=empty[:, 0]),
        plain=empty,
    )
    found = allow(exactly(empty), nothing, io=BF16, unit=UNIT, lost=0.0)
    assert set(found.ratios(found.measure(empty, exactly(empty))).values()) == {0.0}
    assert biases(empty.T, empty.flatten()) == [0.0, 0.0]


def test_an_error_is_admitted_if_every_statistic_is() -> None:
    held = Budget(replace(allowed(), rms=10.0), BF16, 0.0)
    error = torch.zeros(2, 2, dtype=torch.float64)
    assert held.admits(error, exactly(EXACT))
    error[1, 0] = 9.0
    assert held.ratios(held.measure(error, exactly(EXACT)))["rms"] < 1
    assert not held.admits(error, exactly(EXACT))


def test_a_row_without_error_is_met_where_none_is_allowed() -> None:
    held = Budget(replace(allowed(), rows=pair(0.0, 1.0)), BF16, 0.0)
    right, wrong = (
        ErrorStatistics(0.0, 0.0, rows, 0.0, 0.0) for rows in (pair(0.0, 0.5), pair(1e-9, 0.5))
    )
    assert held.row_ratios(right).tolist() == [0.0, 0.5]
    assert held.row_ratios(wrong).tolist() == [math.inf, 0.5]


def test_a_sharp_limit_widens_by_four_deviations_of_the_draws() -> None:
    deviation = math.sqrt(0.02)
    assert sharp_rms([0.9], [1.0, 1.2], 0.0) == pytest.approx(1.1 * (1.1 + 4 * deviation))
