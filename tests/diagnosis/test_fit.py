"""The distance counts what is wrong with the kernel as 1, whatever its size, and
distinguishes what conforming kernels may differ by from more.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from kdaverify.checks.status import Status
from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.tolerances import Scale, comparable, fit

EXACT = torch.linspace(-1, 1, 12, dtype=torch.float64).view(1, 3, 1, 4)
YARD = {"o": Scale(EXACT, 1e-3, 2e-3)}
EFFECT = torch.ones_like(EXACT)


def answer(o: Tensor) -> KernelErrors:
    return KernelErrors({"o": o})


@pytest.mark.parametrize("size", [1e-1, 1e6])
def test_a_right_kernel_is_at_distance_one_and_the_same_fault_at_none(size: float) -> None:
    wrong = EXACT + size * EFFECT
    assert fit(answer(wrong), answer(EXACT), YARD).distance == pytest.approx(1)
    assert fit(answer(wrong), answer(wrong), YARD).distance == 0


def test_two_kernels_a_budget_from_the_same_wrong_value_are_within_the_noise() -> None:
    wrong, noise = EXACT + EFFECT, 1e-3 * EFFECT
    assert (
        fit(answer(wrong + noise), answer(wrong - noise), YARD).noise
        <= 1
        < fit(answer(wrong + noise), answer(wrong - 4 * noise), YARD).noise
    )


def test_noise_grows_with_what_the_fault_makes_of_the_output() -> None:
    wrong = 1e3 * EXACT
    assert (
        fit(answer(wrong), answer(wrong + 1), YARD).noise
        <= 1
        < fit(answer(EXACT), answer(EXACT + 1), YARD).noise
    )


def test_what_differs_in_another_arithmetic_of_the_fault_itself_is_noise() -> None:
    kernel, other, twin = (answer(EXACT + by * EFFECT) for by in (1.0, 1.05, 0.96))
    assert fit(kernel, other, YARD, twin=twin).noise <= 1 < fit(kernel, other, YARD).noise


def test_elements_that_are_not_finite_have_to_be_the_same() -> None:
    lost = EXACT.clone()
    lost[0, 1:] = math.nan
    more = EXACT.clone()
    more[0, :] = math.inf
    assert fit(answer(lost), answer(lost), YARD).noise <= 1
    assert math.isinf(fit(answer(lost), answer(more), YARD).noise)


def test_nan_in_the_same_places_is_no_likeness() -> None:
    lost = EXACT.clone()
    lost[0, 1:] = math.nan
    assert math.isinf(fit(answer(lost), answer(lost), YARD).distance)
    assert not comparable(answer(lost), YARD)
    wrong = lost + EFFECT
    assert fit(answer(wrong), answer(wrong), YARD).distance == 0
    assert comparable(answer(wrong), YARD)
    assert not comparable(answer(torch.full_like(EXACT, math.nan)), YARD)


def test_calls_that_fail_fit_those_that_fail_alike() -> None:
    failed = KernelErrors({}, Status.ERROR)
    assert fit(failed, failed, YARD).distance == 0
    assert math.isinf(fit(failed, answer(EXACT), YARD).distance)
    assert math.isinf(
        fit(KernelErrors({}, Status.SKIP), KernelErrors({}, Status.SKIP), YARD).distance
    )
