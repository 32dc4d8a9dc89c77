"""Measures of probes, on figures worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.measures import RULERS, Probed
from kdaverify.problems.probes import Measure
from oracles.enclosure import Enclosure

BF16 = FORMATS["bf16"]
EXACT = torch.tensor([[[[1.0, -4.0], [0.0, 0.0]]]], dtype=torch.float64)
ERROR = torch.tensor([[[[0.5, -1.0], [0.0, 0.25]]]], dtype=torch.float64)


def probed(exact: Tensor = EXACT, start: Tensor | None = None) -> Probed:
    return Probed(
        Enclosure(exact, torch.zeros_like(exact), torch.zeros_like(exact), exact == 0), start, BF16
    )


def test_a_spacing_is_that_of_the_numbers_around_the_largest_element_of_a_row() -> None:
    assert probed().spacing.flatten().tolist() == [4 * 2.0**-7, BF16.min_normal]
    found = RULERS["spacing"].figures(ERROR, probed())
    assert found[0, 0, 0].tolist() == [0.5 / 2.0**-5, 1.0 / 2.0**-5]


def test_rows_are_relative_to_themselves_or_to_what_changed_in_them() -> None:
    size = 17**0.5
    assert RULERS["memory"].figures(ERROR, probed()).tolist() == pytest.approx(
        [1.25**0.5 / size, 0.0]
    )
    start = EXACT - torch.tensor([[[[0.0, 0.0], [0.0, 2.0]]]])
    assert RULERS["update"].figures(ERROR, probed(start=start)).tolist() == [0.0, 0.125]


def test_a_bias_is_the_mean_of_signed_relative_errors_of_what_is_not_zero() -> None:
    assert RULERS["bias"].figures(ERROR, probed()).tolist() == [(0.5 + 0.25) / 2]
    assert RULERS["bias"].figures(-ERROR, probed()).tolist() == [(0.5 + 0.25) / 2]
    assert RULERS["bias"].figures(ERROR, probed(torch.zeros_like(EXACT))).tolist() == [0.0]


@pytest.mark.parametrize("name", RULERS)
def test_a_kernel_may_show_as_much_as_one_rounding_even_beside_an_exact_ensemble(
    name: Measure,
) -> None:
    third = EXACT / 3
    ruler, at = RULERS[name], probed(third)
    allowed = ruler.allowed(at, [third], [third, third])
    rounded = ruler.figures(BF16.round(third) - third, at)
    assert allowed.shape == rounded.shape and bool((rounded <= allowed).all())
    assert bool((ruler.figures(0.1 * third, at) > allowed).any())


@pytest.mark.parametrize(("name", "least"), [("memory", 0.05), ("update", BF16.unit)])
def test_a_tolerance_is_the_worst_of_all_runs_times_a_margin_and_like_rows_share_a_median(
    name: Measure, least: float
) -> None:
    exact = torch.tensor([[[[1.0, 0.0]] * 3]], dtype=torch.float64)
    at = probed(exact)

    def run(*rows: float) -> Tensor:
        return exact + torch.tensor(rows, dtype=torch.float64)[:, None] * exact

    # The mean of the first row's samples is 0.02, their deviation 0.02 / sqrt(2).
    drawn = [run(0.01, 0.0, 0.0), run(0.03, 0.0, 0.0)]
    allowed = RULERS[name].allowed(at, [run(0.0, 0.02, 0.0)], drawn)
    margin = 1 + 3 / 2**0.5
    assert allowed.tolist() == pytest.approx([2.5 * margin * 0.03, 2.5 * 0.02, least])
