"""Emulated designs are judged as any kernel is."""

from __future__ import annotations

import pytest

from kdaverify.adapters import find
from kdaverify.checks.forward import forward
from kdaverify.checks.gradcheck import gradcheck
from kdaverify.checks.gradients import gradients
from kdaverify.checks.status import Status
from tests.adapters.standins import MakeProblem

DESIGNS = ("emulated:ascend_v3", "emulated:ascend_v2", "emulated:triton_npu_state")


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_right_design_is_conforming_there_and_back_where_gates_are_mild(
    make_problem: MakeProblem, name: str, dtype: str
) -> None:
    adapter, problem = find(name), make_problem(B=1, T=70, H=1, HV=2, dtype=dtype, gate="mild")
    for outcome in (*forward(adapter, problem), *gradients(adapter, problem, of="both")):
        assert outcome.status is Status.PASS, outcome.message
    assert name.removeprefix("emulated:") in adapter.proof()


def test_the_decay_along_the_wrong_axis_is_rejected(make_problem: MakeProblem) -> None:
    adapter = find("emulated:ascend_v1")
    wrong = forward(adapter, make_problem(B=1, T=5, H=1, HV=1, V=8, dtype="bf16"))
    assert {outcome.output: outcome.status for outcome in wrong} == {
        "o": Status.PASS,
        "final_state": Status.FAIL,
    }
    assert "no K = 8 with V = 12: it takes K = V alone" in str(adapter.supports(make_problem(V=12)))


@pytest.mark.parametrize(
    ("name", "status"),
    [("emulated:ascend_v3", Status.NONFINITE), ("emulated:triton_npu_state", Status.PASS)],
)
def test_deep_gates_reject_what_forms_their_inverse(
    make_problem: MakeProblem, name: str, status: Status
) -> None:
    found = forward(find(name), make_problem(B=1, T=70, H=1, HV=1, dtype="bf16", gate="bound-5"))
    assert {outcome.status for outcome in found} == {status}


def test_a_design_is_differentiated_by_its_own_backward_alone(make_problem: MakeProblem) -> None:
    # One gate a token: torch's autograd of the forward gave the first channel the derivatives of
    # all.
    tiny = {"B": 1, "H": 1, "HV": 2, "K": 4, "V": 4, "T": 9, "dtype": "fp64"}
    problem = make_problem(
        **tiny,
        gate="one-token-reset",
        key="alternating",
        beta="uniform",
        state="zero",
        value="large",
        seed=16952,
    )
    adapter = find("emulated:triton_npu_state")
    assert [outcome.status for outcome in gradcheck(adapter, problem, order="second")] == [
        Status.SKIP
    ]
    assert {outcome.status for outcome in gradcheck(adapter, problem)} == {Status.PASS}
