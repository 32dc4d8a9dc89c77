"""Finite gates far below -1e4 show what neither -1e4 nor -inf does;
kernels that treat them rightly pass.
"""

from __future__ import annotations

from typing import Any, Final

import pytest

from kdaverify.checks.calls import questions
from kdaverify.checks.forward import forward
from kdaverify.checks.properties import check
from kdaverify.faults.planted.depth import DEEP, NEAR_0, OF_GRADIENTS, OF_STEPS, RIGHT
from kdaverify.problems import Problem
from tests.faults.triggers import PLAIN

SMALL: Final = Problem.model_validate({**PLAIN, "T": 70, "HV": 2, "K": 8, "V": 8, "dtype": "fp32"})
BEFORE: Final = (
    "bound-100",
    "huge",
    "one-token-reset",
    "one-token-hard-reset",
    "hard-reset",
    "mixed",
)


def _rejected(kernel: Any, gate: str) -> bool:
    return any(outcome.status.rejects for outcome in forward(kernel, SMALL.replace(gate=gate)))


@pytest.mark.parametrize("fault", DEEP)
def test_a_fault_that_no_gate_down_to_1e4_shows_is_rejected(fault: str) -> None:
    wrong = DEEP[fault]()
    assert not any(_rejected(wrong, other) for other in BEFORE)
    assert _rejected(wrong, "deep-resets")


@pytest.mark.parametrize("fault", NEAR_0)
def test_a_fault_next_to_0_is_rejected_by_what_the_panel_has_there(fault: str) -> None:
    wrong = NEAR_0[fault]()
    assert not any(_rejected(wrong, other) for other in (*BEFORE, "deep-resets", "slow", "memory"))
    near = SMALL.replace(gate="vanishing", key="identical", beta="small")
    assert any(outcome.status.rejects for outcome in forward(wrong, near))


@pytest.mark.parametrize("fault", OF_STEPS)
def test_a_step_that_leaves_such_gates_out_is_rejected_by_the_rule_of_steps(fault: str) -> None:
    wrong = OF_STEPS[fault]()
    assert not any(_rejected(wrong, gate) for gate in (*BEFORE, "vanishing"))
    (one,) = (
        one
        for one in questions(wrong, "smoke")
        if one.rule.name == "step" and one.problem.dtype == "fp32"
    )
    assert any(found.status.rejects for found in check("calls", wrong, one.problem, one.detail))


@pytest.mark.parametrize("fault", OF_GRADIENTS)
def test_a_fault_of_tiny_betas_is_rejected_by_gradients_there(fault: str) -> None:
    wrong = OF_GRADIENTS[fault]()

    def rejected(beta: str) -> bool:
        problem = SMALL.replace(gate="mild", beta=beta)
        found = check("gradients", wrong, problem, {"of": "both"})
        return any(outcome.status.rejects for outcome in found)

    assert rejected("tiny") and not rejected("uniform") and not rejected("small")


@pytest.mark.parametrize("name", RIGHT)
def test_kernels_that_saturate_rightly_pass(name: str) -> None:
    assert not _rejected(RIGHT[name](), "deep-resets")
