"""Faults of the entry points: wrappers, caches, guards, the glue to autograd."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kdaverify.faults.fault import Fault, Setting
from kdaverify.faults.kernel import Derive, Outputs, Patch, PatchedPipeline
from kdaverify.faults.patches import called, derived, packed
from kdaverify.faults.views import past_the_end
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

_entry = partial(Fault, stage="entry")
_SHORT = 64
_GRID_LIMIT = 65535
_TUNING_RUNS = 3
_GARBAGE = 1e3


def _one_gradient_too_many(derive: Derive, x: Inputs, given: Cotangents) -> Gradients[Tensor]:
    derive(x, given)
    raise RuntimeError(
        "function ChunkKDABackward returned an incorrect number of gradients (expected 8, got 9)"
    )


def _no_backward_for_short_calls(derive: Derive, x: Inputs, given: Cotangents) -> Gradients[Tensor]:
    if max(x.lengths) <= _SHORT:
        raise NotImplementedError("the recurrent kernel has no backward")
    return derive(x, given)


def _final_gradient_required(derive: Derive, x: Inputs, given: Cotangents) -> Gradients[Tensor]:
    if given.d_final_state is None:
        raise AttributeError("'NoneType' object has no attribute 'contiguous'")
    return derive(x, given)


def _ones_for_the_incoming_gradient(
    derive: Derive, x: Inputs, given: Cotangents
) -> Gradients[Tensor]:
    found = derive(x, given)
    return replace(found, dq=derive(x, Cotangents(torch.ones_like(x.v), given.d_final_state)).dq)


def _state_not_passed_through(derive: Derive, x: Inputs, given: Cotangents) -> Gradients[Tensor]:
    found = derive(x, given)
    tiny = torch.tensor([0 < length <= 2 for length in x.lengths], device=x.q.device)
    if x.initial_state is None:
        return found
    return replace(
        found, d_initial_state=found.d_initial_state.masked_fill(tiny[:, None, None, None], 0.0)
    )


def _gradients_of_padding_unwritten(
    derive: Derive, x: Inputs, given: Cotangents
) -> Gradients[Tensor]:
    found = derive(x, given)
    beyond = torch.arange(x.T, device=x.q.device) >= past_the_end(x)
    return replace(
        found,
        dg=found.dg.masked_fill(beyond[:, None, None], _GARBAGE),
        dbeta=found.dbeta.masked_fill(beyond[:, None], _GARBAGE),
    )


def _shapes(x: Inputs) -> tuple[object, ...]:
    return x.q.dtype, tuple(x.q.shape), tuple(x.v.shape), x.N


def _executor_of_the_first_call(_: Setting) -> Patch:
    scales: dict[tuple[object, ...], float] = {}

    def forward(kernel: PatchedPipeline, x: Inputs) -> Outputs:
        return kernel(replace(x, scale=scales.setdefault(_shapes(x), x.factor)))

    return Patch(forward=forward)


def _written_over_v(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    o, final = kernel(x)
    x.v.detach().copy_(o.detach())
    return o, final


def _one_buffer_for_all_calls(_: Setting) -> Patch:
    buffers: dict[tuple[object, ...], Tensor] = {}

    def forward(kernel: PatchedPipeline, x: Inputs) -> Outputs:
        o, final = kernel(x)
        if o.requires_grad:
            return o, final
        return buffers.setdefault(_shapes(x), torch.empty_like(o)).copy_(o), final

    return Patch(forward=forward)


def _state_updated_by_every_tuning_run(_: Setting) -> Patch:
    tuned: set[tuple[object, ...]] = set()

    def forward(kernel: PatchedPipeline, x: Inputs) -> Outputs:
        if x.initial_state is None or _shapes(x) in tuned:
            return kernel(x)
        tuned.add(_shapes(x))
        for _ in range(_TUNING_RUNS):
            x = replace(x, initial_state=kernel(x)[1].to(x.g.dtype))
        return kernel(x)

    return Patch(forward=forward)


def _grid_too_large(kernel: PatchedPipeline, x: Inputs) -> Outputs:
    if x.N * x.HV > _GRID_LIMIT:
        raise RuntimeError(
            f"invalid configuration argument: grid of {x.N * x.HV} on an axis of {_GRID_LIMIT}"
        )
    return kernel(x)


def _width_not_compiled(_: PatchedPipeline, x: Inputs) -> Outputs:
    raise RuntimeError(f"no kernel was compiled for K = {x.K}, V = {x.V}")


FAULTS: Final = (
    _entry("B12", "gradients of padding are left unwritten", "QwenLM/FlashQLA@646949d", "B",
           "tokens past the last offset", ("dg", "dbeta"),
           derived(_gradients_of_padding_unwritten, when=packed)),
    _entry("B15", "a gradient of the final state is taken for granted", "fla-org/fla@0a2b34f6", "E",
           "a loss on o alone", ("call",), derived(_final_gradient_required)),
    _entry("B25", "a gradient ignores the incoming one", "fla-org/fla#963", "A",
           "any loss but the sum of o", ("dq",), derived(_ones_for_the_incoming_gradient)),
    _entry("B26", "one gradient too many is returned", "QwenLM/FlashQLA@9f9686b", "E",
           "any backward", ("call",), derived(_one_gradient_too_many)),
    _entry("B27", "short calls take a kernel without backward", "fla-org/fla#636", "E",
           "a backward of at most 64 tokens", ("call",), derived(_no_backward_for_short_calls)),
    _entry("P6", "the gradient of a state behind one or two tokens is lost",
           "fla-org/fla#1140,#1141; Ascend #1146", "B",
           "a sequence of one or two tokens, an initial state", ("d_initial_state",),
           derived(_state_not_passed_through)),
    _entry("B35", "the executor of the first call keeps its scale",
           "flashserve/fla-npu@7b2c5834 (a)", "E", "two calls of one shape and different scales",
           ("o",), _executor_of_the_first_call),
    _entry("S23", "the output is written over v",
           "tonyd2wild/GLM-5.3-Flash-NVFP4-DFlash2-2x-DGX-Spark#4 (b)", "E",
           "the same tensors twice; inputs compared before and after", ("call",),
           called(_written_over_v)),
    _entry("S26", "all calls of one shape return the same buffer",
           "flashinfer-ai/flashinfer#4219 (b)", "E",
           "the result of one call looked at after the next", ("o",), _one_buffer_for_all_calls),
    _entry("S28", "every tuning run updates the state", "fla-org/fla#893, @ca89d201", "E",
           "the first call of a shape, with an initial state", ("o", "final_state"),
           _state_updated_by_every_tuning_run),
    _entry("L4", "the grid has an axis of 65535", "fla-org/fla#1077, #1097", "F",
           "more than 65535 sequences times heads", ("call",), called(_grid_too_large)),
    _entry("L8", "a width was never compiled", "inclusionAI/cuLA#41", "F", "K = 64", ("call",),
           called(_width_not_compiled, when=lambda x: x.K == 64)),
)  # fmt: skip
