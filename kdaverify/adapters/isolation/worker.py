"""The worker process: finds the adapter, runs it on shared memory, reports the result."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, AdapterError
from kdaverify.adapters.device_memory import patiently, release
from kdaverify.adapters.isolation.arena import Arena
from kdaverify.adapters.isolation.encoded import pack
from kdaverify.adapters.isolation.fault import CallFailure, fault_of, lost_device
from kdaverify.adapters.isolation.heartbeat import Heartbeat
from kdaverify.adapters.isolation.memory import lift_limit, limit_own_memory, own_memory
from kdaverify.adapters.isolation.messages import (
    About,
    CallActivation,
    CallStage,
    Failed,
    Pickled,
    Ready,
    Reply,
    ReportEnvironment,
    Request,
    Returned,
    RunInside,
    RunKernel,
    Start,
    Step,
    Way,
)
from kdaverify.adapters.isolation.remote import run_activation, run_stage
from kdaverify.adapters.isolation.stacks import watch_stacks
from kdaverify.adapters.poison import poisoned_allocations
from kdaverify.adapters.registry import find
from oracles.autograd import ForwardOnlyError

_PR_SET_PDEATHSIG: Final = 1


def main(given: Mapping[str, Any]) -> None:
    """Serves the harness until it hangs up."""
    start = Start(**given)
    for fd in (start.connection, start.inputs, start.outputs, start.stacks, start.heart):
        os.set_inheritable(fd, False)  # noqa: FBT003 # it takes no keyword
    watch_stacks(start.stacks)
    _die_with_parent(start.parent)
    Heartbeat(start.heart).start(start.parent)
    connection = Connection(start.connection)
    try:
        adapter = find(start.spec)
    except AdapterError as error:
        connection.send(Failed("REFUSED", str(error)))
        return
    if start.bytes:
        limit_own_memory(start.bytes)
    connection.send(Ready(own_memory(os.getpid())))
    _serve(_Worker(adapter, Arena(start.inputs), Arena(start.outputs)), connection)


def _serve(worker: _Worker, connection: Connection) -> None:
    while True:
        try:
            request: Request = connection.recv()
        except EOFError:
            return
        connection.send(worker.reply(request))


def _die_with_parent(parent: int) -> None:
    # The heart would notice too, but not while native code holds the interpreter lock.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit()


class _Worker:
    """The adapters of one spec, by the way to each."""

    def __init__(self, adapter: Adapter, inputs: Arena, outputs: Arena) -> None:
        self._inputs, self._outputs = inputs, outputs
        self._begun: dict[Way, int] = {}
        self._adapters: dict[Way, Adapter] = {(): adapter}

    def reply(self, request: Request) -> Reply:
        try:
            return self._tried(request)
        except AdapterError as error:
            return Failed("REFUSED", str(error))
        except ForwardOnlyError as error:
            return Failed("FORWARD_ONLY", str(error))
        # a kernel may raise anything, and everything has its verdict
        except BaseException as error:  # noqa: BLE001
            fault = _fault(error)
        return Failed(fault.kind, fault.message)

    def _tried(self, request: Request) -> Reply:
        """The answer, with no more of the device's memory kept than the next one needs."""
        adapter = self._adapter(request.way)
        reply = patiently(
            lambda: self._served(adapter, request), lambda error: fault_of(error).kind == "OOM"
        )
        release()
        return reply

    def _served(self, adapter: Adapter, request: Request) -> Reply:
        match request:
            case RunKernel():
                return self._run(adapter, request)
            case CallStage():
                return run_stage(
                    adapter, request, self._taken(adapter, request), self._inputs, self._outputs
                )
            case CallActivation():
                return run_activation(adapter, request, self._inputs, self._outputs)
            case RunInside():
                return self._run_inside(adapter, request)
            case ReportEnvironment():
                return About(adapter.proof(), adapter.environment())

    def _run(self, adapter: Adapter, call: RunKernel) -> Returned:
        self._begin(adapter, call)
        inputs = self._taken(adapter, call)
        with poisoned_allocations(wanted=call.poisoned):
            answered = self._answer(adapter, call, inputs)
        return Returned(pack(answered, inputs, self._outputs))

    def _run_inside(self, adapter: Adapter, request: RunInside) -> Pickled:
        self._begin(adapter, request)
        return Pickled(pickle.dumps(request.function(adapter)))

    def _begin(self, adapter: Adapter, request: RunKernel | RunInside) -> None:
        if torch.get_num_threads() != request.threads:
            torch.set_num_threads(request.threads)
        number, case = request.case
        if self._begun.get(request.way) != number:
            self._begun[request.way] = number
            adapter.begin(case)

    def _answer(self, adapter: Adapter, call: RunKernel, inputs: Any) -> Any:
        if call.entry == "gradients":
            given = {name: self._view(call, name) for name in inputs.signature.cotangents}
            return adapter.gradients(inputs, adapter.operator.cotangents(given))
        return adapter.step(inputs) if call.entry == "step" else adapter.forward(inputs)

    def _taken(self, adapter: Adapter, call: RunKernel | CallStage) -> Any:
        """The call in the memory where the harness laid it."""
        tensors = {name: self._view(call, name) for name in adapter.operator.signature.names()}
        return adapter.operator.call.restored(tensors, call.numbers)

    def _view(self, call: RunKernel | CallStage, name: str) -> Tensor | None:
        return self._inputs.view(call.places[name]) if name in call.places else None

    def _adapter(self, way: Way) -> Adapter:
        if way not in self._adapters:
            self._adapters[way] = _stepped(self._adapter(way[:-1]), way[-1])
        return self._adapters[way]


def _stepped(adapter: Adapter, step: Step) -> Adapter:
    if step[0] == "variant":
        return adapter.variants()[step[1]]
    if step[0] == "configuration":
        return adapter.configurations()[step[1]]
    if step[0] == "configured":
        return adapter.configured(dict(step[1]))
    other = adapter.redeclared(step[1])
    assert other is not None  # the harness's own copy gave one
    return other


def _fault(error: BaseException) -> CallFailure:
    if isinstance(error, MemoryError):
        # Words take memory too; the process is replaced afterwards.
        lift_limit()
    fault = fault_of(error)
    return lost_device(error) if fault.kind == "ERROR" and _device_lost() else fault


def _device_lost() -> bool:
    """Whether an accelerator that this process has used no longer answers."""
    device = torch.accelerator.current_accelerator()
    if device is None or not torch.get_device_module(device).is_initialized():
        return False
    try:
        torch.accelerator.synchronize()
    except Exception:  # noqa: BLE001 # whatever it says: nothing can run there any more
        return True
    return False
