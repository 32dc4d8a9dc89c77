"""Finite gates far below -1e4 show what neither -1e4 nor -inf does; kernels that treat them rightly pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import pytest
import torch
from torch import Tensor

from kdaverify.checks.forward import forward
from kdaverify.problems import Problem
from tests.faults.kernels import port, run
from tests.faults.triggers import PLAIN

SMALL: Final = Problem.model_validate({**PLAIN, "T": 70, "HV": 2, "K": 8, "V": 8, "dtype": "fp32"})
BEFORE: Final = ("bound-100", "huge", "one-token-reset", "one-token-hard-reset", "hard-reset", "mixed")
FIXED_POINT: Final = 2.0**15
LONG_FIXED_POINT: Final = 2.0**19
SENTINEL: Final = -6e4


def _given(name: str, change: Callable[[Tensor], Tensor]) -> Any:
    return port(name, "fp32", lambda x: run(replace(x, g=torch.where(x.g.isneginf(), x.g, change(x.g))), "fp32"))


def _wrapped(g: Tensor, limit: float) -> Tensor:
    """Bits before the point that overflow, as an integer has them."""
    return torch.where(g < -limit, ((g + limit) % (2 * limit) - limit).clamp(max=0.0), g)


WRONG: Final = (
    _given("gates_wrap_in_fixed_point_of_16_bits", lambda g: _wrapped(g, FIXED_POINT)),
    _given("gates_wrap_in_fixed_point_of_20_bits", lambda g: _wrapped(g, LONG_FIXED_POINT)),
    _given("gates_below_a_sentinel_are_padding", lambda g: g.masked_fill(g < SENTINEL, 0.0)),
    _given("gates_below_a_million_are_padding", lambda g: g.masked_fill(g <= -1e6, 0.0)),
)
RIGHT: Final = (
    _given("gates_saturate_in_fixed_point_of_16_bits", lambda g: g.clamp(min=-FIXED_POINT)),
    _given("gates_saturate_in_fixed_point_of_20_bits", lambda g: g.clamp(min=-LONG_FIXED_POINT)),
    _given("gates_below_a_sentinel_are_that", lambda g: g.clamp(min=SENTINEL)),
    _given("gates_below_a_million_are_resets", lambda g: g.masked_fill(g <= -1e6, -torch.inf)),
)


def _rejected(kernel: Any, gate: str) -> bool:
    return any(outcome.status.rejects for outcome in forward(kernel, SMALL.replace(gate=gate)))


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_a_fault_that_no_gate_down_to_1e4_shows_is_rejected(wrong: Any) -> None:
    assert not any(_rejected(wrong, other) for other in BEFORE)
    assert _rejected(wrong, "deep-resets")


@pytest.mark.parametrize("right", RIGHT, ids=lambda right: right.name)
def test_kernels_that_saturate_rightly_pass(right: Any) -> None:
    assert not _rejected(right, "deep-resets")
