"""cuDNN frontend: the CUDA C++ kernels for Hopper."""

from __future__ import annotations

import functools
import importlib
from typing import Any, Final

import torch

from kdaverify.adapters.base import NOTHING_YET, Adapter, Output, WrongKernelError, absent, versions
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.handover import Handover
from kdaverify.adapters.placement import on_device
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.presets import preset
from kdaverify.problems import Problem
from oracles.inputs import Inputs

PLAN: Final = "kda_hopper_cuda"
ENGINE: Final = ("cudnn.linear_attention.hopper.cuda_engine", "KdaHopperCudaPlan")
WIDTH: Final = 128
HOPPER: Final = (9, 0)
INSTALL: Final = "pip install --no-deps nvidia-cudnn-frontend==1.32.0"


class Cudnn(Adapter):
    """kimi_delta_attention with the plan pinned by name: anything else the library would rather run is refused by itself.

    Chunks of 16, bf16 operands, fp32 state, value-first; offsets always. What it leaves in the rows past the last offset means nothing.
    Source: cudnn.linear_attention.kimi_delta_attention, nvidia-cudnn-frontend 1.32.0.
    """

    name = "cudnn"
    dtypes = ("bf16",)
    conventions = Conventions(layout="thd", state="vk", packing="cu_seqlens")
    device = "cuda"
    widths = (WIDTH,)
    isolated = True
    differentiable = False

    def __init__(self) -> None:
        self._ran = NOTHING_YET

    def missing(self) -> str | None:
        lacking = absent(("cudnn",), INSTALL)
        if lacking:
            return lacking
        if not torch.cuda.is_available() or torch.cuda.get_device_capability() != HOPPER:
            return "no NVIDIA Hopper GPU here: the plan was written for it"
        return None

    def contract(self, dtype: str) -> Contract:
        return preset("cudnn", dtype)

    def supports(self, problem: Problem) -> str | None:
        if (problem.K, problem.V) != (WIDTH, WIDTH):
            return f"K = V = {WIDTH}, wanted K = {problem.K}, V = {problem.V}"
        if bool((problem.inputs().beta > 1).any()):
            return "no beta above 1: the kernel cuts its seeds on the promise that nothing expands"
        return None

    def forward(self, inputs: Inputs) -> Output:
        return on_device(self.device, self._run, inputs)

    def proof(self) -> str:
        return self._ran

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **versions("nvidia-cudnn-frontend"), "device": torch.cuda.get_device_name()}

    def _run(self, inputs: Inputs) -> Output:
        executed = _executions()
        handed = self.conventions.arguments(inputs)
        handover = Handover(self.conventions, inputs, handed, padding_undefined=True)
        before = len(executed)
        o, final_state = importlib.import_module("cudnn.linear_attention").kimi_delta_attention(
            *(handed[name] for name in ("q", "k", "v", "g", "beta", "cu_seqlens")),
            scale=handed["scale"],
            initial_state=handed["initial_state"],
            output_final_state=True,
            plan_name=PLAN,
        )
        if len(executed) == before:
            raise WrongKernelError(f"wanted the plan {PLAN} to execute, but another one answered")
        self._ran = f"plan {PLAN}, {executed[-1]}"
        executed.clear()
        return handover.output(o, final_state)


@functools.cache
def _executions() -> list[str]:
    """The list that every execution of the pinned plan is written to."""
    plan = getattr(importlib.import_module(ENGINE[0]), ENGINE[1])
    execute, executed = plan.execute, list[str]()

    def execute_and_tell(self: Any, *args: Any, **kwargs: Any) -> Any:
        executed.append(f"{type(self).__module__}.{type(self).__name__}")
        return execute(self, *args, **kwargs)

    plan.execute = execute_and_tell
    return executed


CUDNN: Final = Cudnn()
