"""Stages of a kernel, and operations beside it, in a worker process: requested here, run there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.isolation.arena import Arena, ArenaSlot, same
from kdaverify.adapters.isolation.messages import CallActivation, CallStage, StageReturned, Way
from kdaverify.adapters.isolation.supervisor import Supervisor
from kdaverify.adapters.stages import StageArguments, StageCall, formats_of
from kdaverify.budgets.formats import FORMATS
from kdaverify.operators.pointwise.call import ActivationArguments, ActivationCall

COTANGENT: Final = "cotangent"
RESULT: Final = "result"
Places = Mapping[str, ArenaSlot]


def remote_stages(
    local: Mapping[str, StageCall], dtype: str, way: Way, supervisor: Supervisor
) -> dict[str, StageCall]:
    """The same stages, each run by the worker process.

    Args:
        local: the stages of the adapter in this process, which are never called.
        dtype, way: which stages of which adapter there.
    """

    def remote(name: str) -> Callable[[StageArguments], dict[str, Tensor]]:
        def call(x: StageArguments) -> dict[str, Tensor]:
            given = x.inputs.tensors()

            def request(places: Places) -> CallStage:
                of_inputs, tensors = (
                    {name: places[name] for name in names} for names in (given, x.tensors)
                )
                threads, numbers = torch.get_num_threads(), x.inputs.numbers()
                return CallStage(
                    way, dtype, name, threads, of_inputs, tensors, numbers, x.chunk_size
                )

            return _returned(request, {**given, **x.tensors}, x.inputs.q.device, supervisor)

        return call

    return {name: replace(stage, call=remote(name)) for name, stage in local.items()}


def remote_activations(
    local: Mapping[str, ActivationCall], dtype: str, way: Way, supervisor: Supervisor
) -> dict[str, ActivationCall]:
    """The same operations, each run by the worker process.

    Args:
        local: those of the adapter in this process, which are never called.
        dtype, way: which operations of which adapter there.
    """

    def remote(op: str, call: ActivationCall) -> ActivationCall:
        def run(x: ActivationArguments) -> dict[str, Tensor]:
            given = (
                dict(x.tensors) if x.cotangent is None else {**x.tensors, COTANGENT: x.cotangent}
            )

            def request(places: Places) -> CallActivation:
                return CallActivation(way, dtype, op, torch.get_num_threads(), places, x.setting)

            return _returned(request, given, next(iter(given.values())).device, supervisor)

        def forward(x: ActivationArguments) -> Any:
            return run(x).get(RESULT)

        return replace(call, forward=forward, backward=None if call.backward is None else run)

    return {op: remote(op, call) for op, call in local.items()}


def _returned(
    request: Callable[[Places], CallStage | CallActivation],
    given: Mapping[str, Tensor],
    device: torch.device,
    supervisor: Supervisor,
) -> dict[str, Tensor]:
    """What was returned there; what was edited there of the given tensors is edited here too."""
    places = supervisor.inputs.lay_out(given)
    returned = supervisor.reply_to(request(places), StageReturned)
    for name, tensor in given.items():
        seen = supervisor.inputs.view(places[name])
        if not same(tensor.cpu(), seen):
            tensor.copy_(seen)
    return {
        name: supervisor.outputs.view(place).to(device, copy=True)
        for name, place in returned.places.items()
    }


def run_stage(
    adapter: Adapter, request: CallStage, inputs: Any, given: Arena, outputs: Arena
) -> StageReturned:
    """Runs a stage in the worker process."""
    torch.set_num_threads(request.threads)
    tensors = {name: given.view(place) for name, place in request.tensors.items()}
    formats = formats_of(adapter.contract(request.dtype), FORMATS[request.dtype])
    x = StageArguments(inputs, tensors, request.chunk_size, formats)
    return _laid_out(adapter.stages(request.dtype)[request.stage].call(x), outputs)


def run_activation(
    adapter: Adapter, request: CallActivation, given: Arena, outputs: Arena
) -> StageReturned:
    """Runs an operation in the worker process, or with a cotangent back."""
    torch.set_num_threads(request.threads)
    tensors = {name: given.view(place) for name, place in request.places.items()}
    x = ActivationArguments(tensors, request.setting, tensors.pop(COTANGENT, None))
    call = adapter.activations(request.dtype)[request.op]
    if x.cotangent is None:
        return _laid_out({RESULT: call.forward(x)}, outputs)
    assert call.backward is not None
    returned: Any = call.backward(x)
    return _laid_out(returned if isinstance(returned, Mapping) else {}, outputs)


def _laid_out(returned: Mapping[str, Any], outputs: Arena) -> StageReturned:
    """A port returns anything; what is no tensor does not come back."""
    kept = {name: value.detach() for name, value in returned.items() if isinstance(value, Tensor)}
    return StageReturned(outputs.lay_out(kept))
