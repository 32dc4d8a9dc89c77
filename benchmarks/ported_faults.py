"""Faults of the catalogue as a user's port: one plain function,
no stages exposed, a declaration of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

import kdaverify as kv
from kdaverify.adapters.eager import EAGER
from kdaverify.adapters.kernel_adapter import KernelAdapter
from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.fault import Setting
from kdaverify.faults.kernel import Outputs, Patch, PatchedPipeline
from kdaverify.problems import Problem
from oracles.chunk import STAGES, Stages
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from tests.faults.triggers import PLAIN

DTYPE: Final = "bf16"
_RIGHT: Final = Patch()
_WHOLE: Final = ("forward", "step", "backward", "gradients", "stored", "chunk_size", "exposes")
"""Parts of a patch that two faults cannot both replace; stages are distinguished one by one."""
_TENSORS: Final = ("q", "k", "v", "g", "beta", "initial_state")


def port(*ids: str) -> KernelAdapter:
    """The embedded kernel with these faults in it, or without any, as `@kernel` makes it of a
    user's function.

    Raises:
        ValueError: two of them replace the same part.
    """
    merged = together([patch_of(name) for name in ids])
    if merged is None:
        raise ValueError(f"{' and '.join(ids)} replace the same part of the kernel; take others")
    step = None if merged.step is None else _function(merged, merged.step)
    made = kv.kernel(
        name="port",
        contract={DTYPE: EAGER.contract(DTYPE)},
        dtypes=(DTYPE,),
        packing="cu_seqlens",
        step=step,
        final_state="final_state" in merged.exposes,
    )
    return made(_function(merged, merged.forward))


def patch_of(name: str) -> Patch:
    """The patch of a fault at full strength."""
    return FAULTS[name].patch(Setting(1.0, torch.Generator().manual_seed(0)))


def together(patches: Sequence[Patch]) -> Patch | None:
    """Patches in one; None where two of them replace the same part."""
    merged = _RIGHT
    for patch in patches:
        if replaced(merged) & replaced(patch):
            return None
        own = {part: getattr(patch, part) for part in _WHOLE if part in replaced(patch)}
        merged = replace(merged, **own, stages=_both(merged, patch))
    return merged


def replaced(patch: Patch) -> frozenset[str]:
    """The parts of the right kernel that a patch replaces, stages by name."""
    stages = patch.stages(Problem.model_validate({**PLAIN, "lengths": (70, 60)}).inputs())
    own = {
        f"stage {name}"
        for name, stage in vars(stages).items()
        if stage is not getattr(STAGES, name)
    }
    return frozenset(
        own | {part for part in _WHOLE if getattr(patch, part) != getattr(_RIGHT, part)}
    )


def _both(a: Patch, b: Patch) -> Callable[[Inputs], Stages]:
    def stages(x: Inputs) -> Stages:
        other = b.stages(x)
        return replace(
            a.stages(x),
            **{
                name: stage
                for name, stage in vars(other).items()
                if stage is not getattr(STAGES, name)
            },
        )

    return stages


def _function(
    patch: Patch, call: Callable[[PatchedPipeline, Inputs], Outputs]
) -> Callable[..., Any]:
    pipeline = PatchedPipeline(EAGER.contract(DTYPE), patch)
    own_backward = patch.backward is not None or patch.gradients is not None

    def kda(
        q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *,
        scale: float, initial_state: Tensor | None, cu_seqlens: Tensor | None,
    ) -> Any:  # fmt: skip
        x = Inputs(q, k, v, g, beta, scale, initial_state, cu_seqlens)
        tensors = [getattr(x, name) for name in _TENSORS]
        differentiated = any(tensor is not None and tensor.requires_grad for tensor in tensors)
        o, final = (
            _Call.apply(pipeline, x, call, *tensors)
            if own_backward and differentiated
            else call(pipeline, x)
        )
        return (o, final) if "final_state" in patch.exposes else o

    return kda


class _Call(torch.autograd.Function):
    """A call whose backward is written, not derived."""

    @staticmethod
    def forward(
        ctx: Any, pipeline: PatchedPipeline, x: Inputs, call: Any, *tensors: Tensor | None
    ) -> Outputs:
        del tensors
        ctx.pipeline, ctx.x = (
            pipeline,
            replace(x, **{name: _detached(getattr(x, name)) for name in _TENSORS}),
        )
        ctx.set_materialize_grads(False)
        return call(pipeline, ctx.x)

    @staticmethod
    def backward(ctx: Any, *given: Tensor | None) -> Any:
        do, *others = given
        cotangents = Cotangents(_without_padding(do, ctx.x), *others)
        wrapped = ctx.pipeline.patch.gradients
        derive = ctx.pipeline.gradients
        found = derive(ctx.x, cotangents) if wrapped is None else wrapped(derive, ctx.x, cotangents)
        last = None if ctx.x.initial_state is None else found.d_initial_state
        return None, None, None, found.dq, found.dk, found.dv, found.dg, found.dbeta, last


def _without_padding(do: Tensor | None, x: Inputs) -> Tensor | None:
    """do with 0 past the last offset, where a kernel reads nothing: ours refuses NaN there, and the
    port would fail by more than its fault. Without padding do stays as it came: a copy would hide
    its strides from a fault that ignores them (P7).
    """
    if do is None or x.cu_seqlens is None or do.shape[1] == int(x.cu_seqlens[-1]):
        return do
    padded = torch.arange(do.shape[1], device=do.device) >= x.cu_seqlens[-1]
    return do.masked_fill(padded[:, None, None], 0.0)


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()
