"""Calls that run as one give what each gives alone: outputs, gradients, dense and packed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from oracles.adjoint import adjoint
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from oracles.recurrence import recurrence
from oracles.together import (
    cotangents_together,
    gradients_apart,
    states_apart,
    together,
    tokens_apart,
)


@pytest.mark.parametrize("offsets", [None, [0, 0, 3, 7]], ids=["dense", "packed"])
def test_together_and_apart_again(
    offsets: list[int] | None, call: Callable[..., Inputs], cotangents: Callable[..., Cotangents]
) -> None:
    first = call(T=9, HV=2, offsets=offsets, dtype=torch.float64)
    calls = [first, replace(first, v=2 * first.v, k=-first.k), replace(first, beta=first.beta / 2)]
    weights = [cotangents(one) for one in calls]
    o, final = recurrence(together(calls))
    apart = zip(tokens_apart(o, first, 3), states_apart(final, first, 3), strict=True)
    for one, got in zip(calls, apart, strict=True):
        for found, wanted in zip(got, recurrence(one), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-14, atol=1e-14)
    joined = gradients_apart(
        adjoint(together(calls), cotangents_together(weights, first)), first, 3
    )
    for one, given, found in zip(calls, weights, joined, strict=True):
        for name, wanted in adjoint(one, given).named().items():
            torch.testing.assert_close(found.named()[name], wanted, rtol=1e-13, atol=1e-13)
