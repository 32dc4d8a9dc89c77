"""Stages of a kernel that runs in a worker process: requested here, run there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.isolation.arena import Arena, same
from kdaverify.adapters.isolation.messages import CallStage, StageReturned, Way
from kdaverify.adapters.isolation.supervisor import Supervisor
from kdaverify.adapters.stages import StageArguments, StageCall, formats_of
from kdaverify.budgets.formats import FORMATS


def remote_stages(
    local: Mapping[str, StageCall], dtype: str, way: Way, supervisor: Supervisor
) -> dict[str, StageCall]:
    """The same stages, each run by the worker process.

    Args:
        local: the stages of the adapter in this process, which are never called.
        dtype, way: which stages of which adapter there.
    """

    def tested(name: str, stage: StageCall) -> StageCall:
        def call(x: StageArguments) -> dict[str, Tensor]:
            return _tested(
                CallStage(
                    way,
                    dtype,
                    name,
                    torch.get_num_threads(),
                    {},
                    {},
                    x.inputs.numbers(),
                    x.chunk_size,
                ),
                x,
                supervisor,
            )

        return replace(stage, call=call)

    return {name: tested(name, stage) for name, stage in local.items()}


def _tested(request: CallStage, x: StageArguments, supervisor: Supervisor) -> dict[str, Tensor]:
    """What the stage returned there; what it edited is edited here too."""
    given = x.inputs.tensors()
    places = supervisor.inputs.lay_out({**given, **x.tensors})
    request = replace(
        request,
        places={name: places[name] for name in given},
        tensors={name: places[name] for name in x.tensors},
    )
    returned = supervisor.reply_to(request, StageReturned)
    for name, tensor in {**given, **x.tensors}.items():
        seen = supervisor.inputs.view(places[name])
        if not same(tensor.cpu(), seen):
            tensor.copy_(seen)
    return {
        name: supervisor.outputs.view(place).to(x.inputs.q.device, copy=True)
        for name, place in returned.places.items()
    }


def run_stage(
    adapter: Adapter, request: CallStage, inputs: Any, given: Arena, outputs: Arena
) -> StageReturned:
    """Runs a stage in the worker process; what is no tensor does not come back."""
    torch.set_num_threads(request.threads)
    tensors = {name: given.view(place) for name, place in request.tensors.items()}
    formats = formats_of(adapter.contract(request.dtype), FORMATS[request.dtype])
    returned: Mapping[str, Any] = adapter.stages(request.dtype)[request.stage].call(
        StageArguments(inputs, tensors, request.chunk_size, formats)
    )
    # a port returns anything
    kept = {name: value.detach() for name, value in returned.items() if isinstance(value, Tensor)}
    return StageReturned(outputs.lay_out(kept))
