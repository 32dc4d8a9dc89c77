"""Emulated designs are judged as any kernel is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from kdaverify.adapters import find
from kdaverify.adapters.emulated import Emulated
from kdaverify.budgets.designs.state_kernel import SCALED, scaled_state
from kdaverify.budgets.scalar_decay import to_end
from kdaverify.checks.forward import forward
from kdaverify.checks.gradcheck import gradcheck
from kdaverify.checks.gradients import gradients
from kdaverify.checks.status import Status
from kdaverify.problems.cotangents import cotangents
from oracles.chunk import Chunk
from tests.adapters.standins import MakeProblem

DESIGNS = (
    "emulated:ascend_v3",
    "emulated:ascend_v2",
    "emulated:triton_npu_state",
    "emulated:triton_npu_gdn",
)


@pytest.mark.parametrize("name", DESIGNS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_right_design_is_conforming_there_and_back_where_gates_are_mild(
    make_problem: MakeProblem, name: str, dtype: str
) -> None:
    adapter = find(name)
    problem = adapter.domain.fit(make_problem(B=1, T=70, H=1, HV=2, dtype=dtype, gate="mild"))
    for outcome in (*forward(adapter, problem), *gradients(adapter, problem, of="both")):
        assert outcome.status is Status.PASS, outcome.message
    assert name.removeprefix("emulated:") in adapter.proof()


@pytest.mark.parametrize("name", DESIGNS)
def test_gradients_of_padding_may_hold_anything(make_problem: MakeProblem, name: str) -> None:
    adapter = find(name)
    packed = make_problem(B=1, T=9, H=1, HV=2, dtype="bf16", gate="mild", lengths=(5, 0, 2))
    problem = adapter.domain.fit(packed)
    x, given = problem.inputs(), cotangents(problem, "both")
    assert given.do is not None
    plain = adapter.gradients(x, given).named()
    poisoned = replace(given, do=given.do.clone().index_fill(1, torch.tensor([7, 8]), torch.nan))
    for output, found in adapter.gradients(x, poisoned).named().items():
        assert torch.equal(found, plain[output]), output


def test_the_decay_along_the_wrong_axis_is_rejected(make_problem: MakeProblem) -> None:
    adapter = find("emulated:ascend_v1")
    wrong = forward(adapter, make_problem(B=1, T=5, H=1, HV=1, V=8, dtype="bf16"))
    assert {outcome.output: outcome.status for outcome in wrong} == {
        "o": Status.PASS,
        "final_state": Status.FAIL,
    }
    assert "no K = 8 with V = 12: it takes K = V alone" in str(adapter.supports(make_problem(V=12)))


def test_a_stored_v_new_that_is_read_as_not_yet_scaled_is_rejected(
    make_problem: MakeProblem,
) -> None:
    """The state kernel's v_new carries its decay; FLA's output kernel decays it once more."""
    problem = make_problem(B=1, T=70, H=1, HV=2, dtype="bf16", gate="mild", gates="head")
    assert {outcome.output: outcome.status for outcome in forward(Misread(), problem)} == {
        "o": Status.FAIL,
        "final_state": Status.PASS,
    }


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("emulated:ascend_v3", Status.NONFINITE),
        ("emulated:triton_npu_state", Status.PASS),
        ("emulated:triton_npu_gdn", Status.PASS),
    ],
)
def test_deep_gates_reject_what_forms_their_inverse(
    make_problem: MakeProblem, name: str, status: Status
) -> None:
    adapter = find(name)
    deep = make_problem(B=1, T=70, H=1, HV=1, dtype="bf16", gate="bound-5")
    found = forward(adapter, adapter.domain.fit(deep))
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


class Misread(Emulated):
    """The state kernel beside an output kernel that takes its scaled v_new for the other one."""

    def __init__(self) -> None:
        super().__init__("triton_npu_gdn")
        self._design = replace(self._design, stages=replace(SCALED, state=_misread))


def _misread(c: Chunk) -> None:
    scaled_state(c)
    c.v_new = c.store("v_decayed", c.v_new * to_end(c))
