"""cuDNN frontend: the CUDA C++ kernels for Hopper."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, Final

import torch

from kdaverify.adapters.base import Output, WatchedAdapter, WrongKernelError, absent, versions
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.handover import Handover
from kdaverify.adapters.placement import on_device
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.presets import preset
from kdaverify.problems import Domain
from oracles.autograd import ForwardOnlyError
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

PLAN: Final = "kda_hopper_cuda"
ENGINE: Final = "cudnn.linear_attention.hopper.cuda_engine"
FORWARD: Final = "KdaHopperCudaPlan"
BACKWARD: Final = "KdaHopperCudaBwdPlan"
WIDTH: Final = 128
SCALE_SLACK: Final = 1e-9
HOPPER: Final = (9, 0)
INSTALL: Final = "pip install --no-deps nvidia-cudnn-frontend==1.32.0"


class Cudnn(WatchedAdapter):
    """kimi_delta_attention with the plan pinned by name: others are refused by the library.

    Chunks of 16, bf16 operands, fp32 state, value-first; offsets always. What it leaves in the rows
    past the last offset means nothing. The backward is a kernel of its own, in chunks of 64: Akk,
    dkb and dvb never leave fp32, and what o gives to the state's gradient is made ahead of it and
    stored. It takes beta in fp32 alone.
    Source: cudnn.linear_attention.kimi_delta_attention, nvidia-cudnn-frontend 1.32.0.
    """

    name = "cudnn"
    dtypes = ("bf16",)
    conventions = Conventions(layout="thd", state="vk", packing="cu_seqlens")
    device = "cuda"
    # The kernel cuts its seeds on the promise that nothing expands: no beta above 1.
    domain = Domain(widths=(WIDTH,), beta_range=(0.0, 1.0))
    backward_domain = Domain(widths=(WIDTH,), beta_range=(0.0, 1.0), head_ratios=(1,), scales=False)
    isolated = True

    def missing(self) -> str | None:
        lacking = absent(("cudnn",), INSTALL)
        if lacking:
            return lacking
        if not torch.cuda.is_available() or torch.cuda.get_device_capability() != HOPPER:
            return "no NVIDIA Hopper GPU here: the plan was written for it"
        return None

    def contract(self, dtype: str) -> Contract:
        return preset("cudnn", dtype)

    def backward_contract(self, dtype: str) -> Contract:
        return preset("cudnn-backward", dtype)

    def forward(self, inputs: Inputs) -> Output:
        return on_device(self.device, self._run, inputs)

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        if inputs.H != inputs.HV:
            raise ForwardOnlyError(
                f"its backward takes as many value heads as key heads, wanted {inputs.HV} and"
                f" {inputs.H}"
            )
        if abs(inputs.factor - WIDTH**-0.5) > SCALE_SLACK:
            raise ForwardOnlyError(
                f"its backward takes the scale {WIDTH}^-1/2 alone, wanted {inputs.factor:g}"
            )
        found = super().gradients(inputs, cotangents)
        if any(inputs.lengths) and BACKWARD not in _executions():
            raise WrongKernelError(
                f"wanted {BACKWARD} of the plan {PLAN} to execute, but another one answered"
            )
        return found

    def environment(self) -> dict[str, str]:
        return {
            **super().environment(),
            **versions("nvidia-cudnn-frontend"),
            "device": torch.cuda.get_device_name(),
        }

    def _run(self, inputs: Inputs) -> Output:
        executed = _executions()
        handed = self.conventions.arguments(inputs)
        handover = Handover(self.conventions, inputs, handed, padding_undefined=True)
        executed.clear()
        o, final_state = importlib.import_module("cudnn.linear_attention").kimi_delta_attention(
            *(handed[name] for name in ("q", "k", "v", "g")),
            handed["beta"].float(),
            handed["cu_seqlens"],
            scale=handed["scale"],
            initial_state=handed["initial_state"],
            output_final_state=True,
            plan_name=PLAN,
        )
        if FORWARD not in executed:
            raise WrongKernelError(f"wanted the plan {PLAN} to execute, but another one answered")
        self._ran = f"plan {PLAN}, {ENGINE}.{FORWARD}"
        return handover.output(o, final_state)


@functools.cache
def _executions() -> list[str]:
    """The list that every execution of a pinned plan is written to, forward and backward."""
    engine, executed = importlib.import_module(ENGINE), list[str]()
    for name in (FORWARD, BACKWARD):
        plan = getattr(engine, name)
        plan.execute = _recorded(plan.execute, name, executed)
    return executed


def _recorded(execute: Callable[..., Any], name: str, executed: list[str]) -> Callable[..., Any]:
    def execute_and_record(*args: Any, **kwargs: Any) -> Any:
        executed.append(name)
        return execute(*args, **kwargs)

    return execute_and_record


CUDNN: Final = Cudnn()
