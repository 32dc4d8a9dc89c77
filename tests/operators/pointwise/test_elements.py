"""Elements against bounds of their own, on figures worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.compare import Comparison
from kdaverify.checks.status import Status
from kdaverify.operators.pointwise.call import ActivationArguments
from kdaverify.operators.pointwise.elements import compare_elements, two_measures
from kdaverify.operators.pointwise.tolerance import ResultTolerance

FP16 = FORMATS["fp16"]
HIGHEST = 65504.0
FREE = math.inf


def row(*values: float) -> Tensor:
    """One token of one head."""
    return torch.tensor(values, dtype=torch.float64).view(1, 1, 1, -1)


def compared(found: Tensor, exact: Tensor, bound: Tensor) -> Comparison:
    return compare_elements(
        "y", found, ResultTolerance(exact, bound, FP16, bound), ActivationArguments({"x": exact})
    )


def test_the_worst_fraction_of_a_bound_is_reported_with_its_place() -> None:
    found = compared(row(1.0, 2.3, 3.0), row(1.0, 2.0, 3.5), row(1.0, 0.5, 1.0))
    assert (found.status, found.statistic, found.grade) == (Status.PASS, "element", "A")
    assert (found.ratio, found.value, found.budget) == pytest.approx((0.6, 0.3, 0.5))
    assert found.worst is not None and found.worst.index == (0, 0, 0, 1)
    over = compared(row(1.0, 2.75, 3.0), row(1.0, 2.0, 3.5), row(1.0, 0.5, 1.0))
    assert (over.status, over.ratio, over.grade) == (Status.FAIL, 1.5, "F")


def test_what_is_not_judged_may_be_anything() -> None:
    assert compared(row(math.nan, 1.0), row(5.0, 1.0), row(FREE, 0.5)).status is Status.PASS


def test_no_number_where_one_is_tested_is_reported_before_all_else() -> None:
    found = compared(row(9.0, math.nan), row(5.0, 1.0), row(0.5, 0.5))
    assert (found.status, found.statistic, found.value, found.ratio) == (
        Status.NONFINITE,
        "finite",
        1.0,
        math.inf,
    )


def test_an_exact_zero_that_is_lost_is_a_failure_of_its_own_kind() -> None:
    found = compared(row(1.0, 1e-30), row(1.0, 0.0), row(0.5, 0.0))
    assert (found.status, found.statistic, found.value) == (Status.FAIL, "zero", 1.0)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_bound_past_the_largest_number_lets_it_be_passed_on_that_side_alone(sign: float) -> None:
    exact, bound = sign * row(HIGHEST), row(100.0)
    for right in (math.inf, HIGHEST):
        assert compared(sign * row(right), exact, bound).status is Status.PASS
    assert compared(sign * row(-math.inf), exact, bound).status is Status.NONFINITE
    assert compared(sign * row(HIGHEST - 4096), exact, bound).status is Status.FAIL
    assert (
        compared(sign * row(math.inf), sign * row(HIGHEST - 4096), bound).status is Status.NONFINITE
    )


def test_a_bound_as_wide_as_the_result_proves_nothing() -> None:
    assert compared(row(1.0, 2.0), row(1.0, 2.0), row(0.1, 0.1)).vacuous == ()
    assert compared(row(1.0, 2.0), row(1.0, 2.0), row(9.0, 9.0)).vacuous == ("zeros", "negated")


def test_both_measures_of_a_gate_leave_out_what_is_not_judged() -> None:
    exact = row(-1.0, -2.0, -3.0)
    allowed = ResultTolerance(exact, row(1.0, 1.0, FREE), FORMATS["fp32"], row(0.25, 1.0, 1.0))
    reported = two_measures(row(-1.5, -2.0, math.nan), allowed)
    decay = math.exp(-1.0) - math.exp(-1.5)
    assert reported.startswith(
        f"g is off by 0.5 of itself at most, the decay exp(g) by {decay:.3g}; 2 times the tolerance"
        " of a kernel"
    )
    assert two_measures(row(-math.inf, -2.0, 7.0), allowed).startswith(
        "g is off by 0 of itself at most, the decay exp(g) by 0; 0 times"
    )
