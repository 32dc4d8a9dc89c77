"""Operations beside a kernel that runs in a worker process: requested here, run there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.isolation.arena import Arena, same
from kdaverify.adapters.isolation.messages import CallActivation, StageReturned, Way
from kdaverify.adapters.isolation.supervisor import Supervisor
from kdaverify.operators.pointwise.call import ActivationArguments, ActivationCall

COTANGENT: Final = "cotangent"
RESULT: Final = "result"


def remote_activations(
    local: Mapping[str, ActivationCall], dtype: str, way: Way, supervisor: Supervisor
) -> dict[str, ActivationCall]:
    """The same operations, each run by the worker process.

    Args:
        local: those of the adapter in this process, which are never called.
        dtype, way: which operations of which adapter there.
    """

    def tested(op: str, call: ActivationCall) -> ActivationCall:
        def run(x: ActivationArguments) -> dict[str, Tensor]:
            return _tested(
                CallActivation(way, dtype, op, torch.get_num_threads(), {}, x.setting),
                x,
                supervisor,
            )

        def forward(x: ActivationArguments) -> Any:
            return run(x).get(RESULT)

        return replace(call, forward=forward, backward=None if call.backward is None else run)

    return {op: tested(op, call) for op, call in local.items()}


def _tested(
    request: CallActivation, x: ActivationArguments, supervisor: Supervisor
) -> dict[str, Tensor]:
    """What the operation returned there; what it edited is edited here too."""
    given = dict(x.tensors) if x.cotangent is None else {**x.tensors, COTANGENT: x.cotangent}
    request = replace(request, places=supervisor.inputs.lay_out(given))
    returned = supervisor.reply_to(request, StageReturned)
    for name, tensor in given.items():
        seen = supervisor.inputs.view(request.places[name])
        if not same(tensor.cpu(), seen):
            tensor.copy_(seen)
    device = next(iter(given.values())).device
    return {
        name: supervisor.outputs.view(place).to(device, copy=True)
        for name, place in returned.places.items()
    }


def run_activation(
    adapter: Adapter, request: CallActivation, given: Arena, outputs: Arena
) -> StageReturned:
    """Runs an operation in the worker, or with a cotangent back; only tensors come back."""
    torch.set_num_threads(request.threads)
    tensors = {name: given.view(place) for name, place in request.places.items()}
    x = ActivationArguments(tensors, request.setting, tensors.pop(COTANGENT, None))
    call = adapter.activations(request.dtype)[request.op]
    returned: Any  # a port returns anything
    if x.cotangent is None:
        returned = {RESULT: call.forward(x)}
    else:
        assert call.backward is not None
        returned = call.backward(x)
    given_back = returned if isinstance(returned, Mapping) else {}
    kept = {name: value.detach() for name, value in given_back.items() if isinstance(value, Tensor)}
    return StageReturned(outputs.lay_out(kept))
