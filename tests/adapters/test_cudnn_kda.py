"""The cuDNN adapter against stand-ins with the library's signature:
its conventions, its pinned plan, its limits.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from kdaverify.adapters import Adapter, WrongKernelError, cudnn_kda, find
from kdaverify.adapters.cudnn_kda import BACKWARD, ENGINE, FORWARD, PLAN, Cudnn
from kdaverify.checks.gradients import gradients
from kdaverify.checks.status import Status
from kdaverify.problems import cotangents
from oracles.inputs import Inputs
from oracles.recurrence import recurrence
from tests.adapters.standins import MakeProblem, distance

SIZES = {"B": 1, "H": 2, "HV": 2, "K": 128, "V": 128, "T": 40, "dtype": "bf16"}
Library = Callable[..., Adapter]


class Plan:
    """What the library calls when it runs the pinned plan."""

    def execute(self, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        state = tensors[6]
        q, k, v, g, beta, offsets = (x for x in tensors[:6] if x is not None)
        q64, k64, v64, g64, beta64 = (x[None].double() for x in (q, k, v, g, beta))
        initial = None if state is None else state.double().mT
        o, final = recurrence(
            Inputs(q64, k64, v64, g64, beta64, initial_state=initial, cu_seqlens=offsets.long())
        )
        return o[0].to(q.dtype), final.mT.float()


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Library:
    """Installs a stand-in library, and gives the adapter that believes to be on a GPU."""

    def install(*, runs_its_plan: bool = True, runs_its_backward: bool = True) -> Adapter:
        engine, module = ModuleType(ENGINE), ModuleType("cudnn.linear_attention")
        plan: Any = type(FORWARD, (Plan,), {"execute": Plan.execute})

        def execute(_: Any, do: Tensor) -> Tensor:
            return do

        back: Any = type(BACKWARD, (), {"execute": execute})
        setattr(engine, FORWARD, plan)
        setattr(engine, BACKWARD, back)

        def kimi_delta_attention(*tensors: Tensor, **named: Any) -> Any:
            assert (
                named["plan_name"] == PLAN
                and named["output_final_state"]
                and named["scale"] == pytest.approx(128**-0.5)
            )
            assert tensors[4].dtype == torch.float32  # its backward takes no other beta
            chosen = plan() if runs_its_plan else Plan()
            o, final = chosen.execute(*tensors, named["initial_state"])
            if o.requires_grad and runs_its_backward:
                o.register_hook(back().execute)
            return o, final

        vars(module)["kimi_delta_attention"] = kimi_delta_attention
        for name, made in {
            "cudnn": ModuleType("cudnn"),
            "cudnn.linear_attention": module,
            ENGINE: engine,
        }.items():
            monkeypatch.setitem(sys.modules, name, made)
        cudnn_kda._executions.cache_clear()  # pyright: ignore[reportPrivateUsage]
        adapter = Cudnn()
        adapter.device = "cpu"
        return adapter

    return install


def test_the_declared_conventions_give_the_right_answer(
    library: Library, make_problem: MakeProblem
) -> None:
    adapter = library()
    for changes in ({}, {"state": "absent"}, {"lengths": (3, 0, 30), "T": 40}):
        assert max(distance(adapter, make_problem(**SIZES | changes)).values()) < 4e-3
    assert adapter.proof().startswith(f"plan {PLAN}, ")


def test_another_plan_is_the_wrong_kernel(library: Library, make_problem: MakeProblem) -> None:
    with pytest.raises(WrongKernelError, match=f"wanted the plan {PLAN}"):
        library(runs_its_plan=False).forward(make_problem(**SIZES).inputs())


def test_an_answer_in_anothers_state_order_is_seen(
    library: Library, make_problem: MakeProblem, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = Plan.execute

    def transposed(self: Plan, *tensors: Tensor | None) -> tuple[Tensor, Tensor]:
        o, final = answer(self, *tensors)
        return o, final.mT

    monkeypatch.setattr(Plan, "execute", transposed)
    assert distance(library(), make_problem(**SIZES))["final_state"] > 0.1


def test_its_backward_is_judged_under_a_contract_of_its_own(
    library: Library, make_problem: MakeProblem
) -> None:
    adapter = library()
    problem = make_problem(**SIZES)
    found = gradients(adapter, problem, of="both")
    assert [outcome.status for outcome in found] == [Status.PASS] * 6
    assert adapter.backward_contract("bf16").chunk_size == 64 != adapter.contract("bf16").chunk_size


def test_another_backward_is_the_wrong_kernel(library: Library, make_problem: MakeProblem) -> None:
    problem = make_problem(**SIZES)
    with pytest.raises(WrongKernelError, match=f"wanted {BACKWARD}"):
        library(runs_its_backward=False).gradients(problem.inputs(), cotangents(problem, "both"))


def test_what_its_backward_does_not_take_is_a_reason(
    library: Library, make_problem: MakeProblem
) -> None:
    grouped = gradients(library(), make_problem(**SIZES | {"HV": 4}), of="both")
    assert [outcome.status for outcome in grouped] == [Status.SKIP]
    assert "as many value heads as key heads" in grouped[0].message


def test_limits_are_reasons(make_problem: MakeProblem) -> None:
    adapter = find("cudnn")
    assert "no K = 64: it takes widths of 128 alone" in str(
        adapter.supports(make_problem(K=64, V=128))
    )
    assert "beta in [0, 1] alone" in str(adapter.supports(make_problem(**SIZES, beta="two")))
    assert adapter.supports(make_problem(**SIZES)) is None
    if not torch.cuda.is_available():
        assert adapter.missing() is not None
