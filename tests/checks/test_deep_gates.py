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
from oracles.chunk import STAGES, Chunk
from tests.faults.kernels import port, run, staged
from tests.faults.triggers import PLAIN

SMALL: Final = Problem.model_validate({**PLAIN, "T": 70, "HV": 2, "K": 8, "V": 8, "dtype": "fp32"})
BEFORE: Final = ("bound-100", "huge", "one-token-reset", "one-token-hard-reset", "hard-reset", "mixed")
FIXED_POINT: Final = 2.0**15
SENTINEL: Final = -6e4


def _given(name: str, change: Callable[[Tensor], Tensor]) -> Any:
    return port(name, "fp32", lambda x: run(replace(x, g=torch.where(x.g.isneginf(), x.g, change(x.g))), "fp32"))


def _wrapped(g: Tensor) -> Tensor:
    """Sixteen bits before the point, as an integer has them that overflows."""
    return ((g + FIXED_POINT) % (2 * FIXED_POINT) - FIXED_POINT).clamp(max=0.0)


def _summed(name: str, change: Callable[[Tensor], Tensor], back: float = 1.0) -> Any:
    def cumsum(c: Chunk) -> None:
        STAGES.cumsum(c)  # counts the hard resets
        g = c.tokens.g
        c.G = change(g.masked_fill(g.isneginf(), 0.0)).cumsum(-2) * back

    return staged(name, "fp32", cumsum=cumsum)


WRONG: Final = {
    "deep-resets": (
        _given("gates_wrap_in_fixed_point", lambda g: torch.where(g < -FIXED_POINT, _wrapped(g), g)),
        _given("gates_below_a_sentinel_are_padding", lambda g: g.masked_fill(g < SENTINEL, 0.0)),
    ),
    "lowest-reset": (
        _summed("gates_scaled_before_the_sum", lambda g: 16.0 * g, 1 / 16),
        _summed("sign_of_gates_by_their_squares", lambda g: -(g * g).sqrt()),
    ),
}
RIGHT: Final = (
    _given("gates_saturate_in_fixed_point", lambda g: g.clamp(min=-FIXED_POINT)),
    _given("gates_below_a_sentinel_are_resets", lambda g: g.clamp(min=SENTINEL)),
    _summed("gates_saturate_before_they_are_scaled", lambda g: 16.0 * g.clamp(min=-1e9), 1 / 16),
    _summed("sign_of_gates_by_their_magnitude", lambda g: -g.abs()),
)
CASES: Final = [(kernel, gate) for gate, kernels in WRONG.items() for kernel in kernels]


def _rejected(kernel: Any, gate: str) -> bool:
    return any(outcome.status.rejects for outcome in forward(kernel, SMALL.replace(gate=gate)))


@pytest.mark.parametrize(("wrong", "regime"), CASES, ids=lambda x: getattr(x, "name", x))
def test_a_fault_that_no_gate_down_to_1e4_shows_is_rejected(wrong: Any, regime: str) -> None:
    assert not any(_rejected(wrong, other) for other in BEFORE)
    assert _rejected(wrong, regime)


@pytest.mark.parametrize("right", RIGHT, ids=lambda right: right.name)
def test_kernels_that_saturate_rightly_pass(right: Any) -> None:
    assert not any(_rejected(right, gate) for gate in WRONG)
