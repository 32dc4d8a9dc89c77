"""On a real GPU: what poisons, fills or occupies the device ends one case,
and the next one runs on it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import pytest
import torch

from kdaverify.adapters import Adapter, Output
from kdaverify.adapters.isolation import Isolated
from kdaverify.adapters.placement import on_device
from kdaverify.budgets.contract import Contract, contract_from_name
from kdaverify.checks.properties import check
from kdaverify.checks.status import Status
from kdaverify.limits import Limits
from kdaverify.problems import Problem
from oracles.inputs import Inputs
from oracles.recurrence import recurrence

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here")


def busy() -> None:
    # the one kernel at hand that takes its time
    torch.cuda._sleep(1 << 40)  # pyright: ignore[reportPrivateUsage]
    torch.cuda.synchronize()


FAULTS: Final[Mapping[str, tuple[Callable[[], Any], Status, str]]] = {
    "out of bounds": (
        lambda: torch.zeros(1, device="cuda")[torch.tensor([5], device="cuda")],
        Status.CRASH,
        "left its device unusable: .*device-side assert",
    ),
    "too much": (lambda: torch.empty(1 << 42, device="cuda"), Status.OOM, "out of memory"),
    "busy": (busy, Status.HANG, "in synchronize"),
}


class OnDevice(Adapter):
    """The right kernel on the GPU, after a fault."""

    name = "on-device"
    dtypes = ("fp32",)
    device = "cuda"

    def __init__(self, fault: str = "") -> None:
        self._fault = fault

    def contract(self, dtype: str) -> Contract:
        del dtype
        return contract_from_name("recurrent-fp32")

    def variants(self) -> Mapping[str, Adapter]:
        return {name: OnDevice(name) for name in FAULTS}

    def forward(self, inputs: Inputs) -> Output:
        return on_device("cuda", self._run, inputs)

    def proof(self) -> str:
        return "torch"

    def _run(self, inputs: Inputs) -> Output:
        if self._fault:
            FAULTS[self._fault][0]()
        o, state = recurrence(inputs)
        return Output(o.float(), state.float())


ON_DEVICE: Final = OnDevice()


def test_a_lost_device_ends_one_case(problem: Problem) -> None:
    isolated = Isolated(
        ON_DEVICE,
        "tests.adapters.isolation.test_accelerator:ON_DEVICE",
        limits=Limits(seconds=30.0),
    )
    healthy = check("forward", ON_DEVICE, problem, {})
    assert {outcome.status for outcome in healthy} == {Status.PASS}
    for name, (_, status, message) in FAULTS.items():
        assert check("forward", isolated, problem, {}) == healthy
        (outcome,) = check("forward", isolated.variants()[name], problem, {})
        assert (outcome.status, bool(re.search(message, outcome.message, re.DOTALL))) == (
            status,
            True,
        ), outcome
    assert check("forward", isolated, problem, {}) == healthy
    isolated.end()
