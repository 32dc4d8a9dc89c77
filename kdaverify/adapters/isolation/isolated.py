"""An adapter whose kernel runs in a worker process."""

from __future__ import annotations

import itertools
import os
import pickle
import platform
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, values_of, versions
from kdaverify.adapters.conventions import Conventions
from kdaverify.adapters.isolation.arena import same
from kdaverify.adapters.isolation.encoded import unpack
from kdaverify.adapters.isolation.fault import CallFailure
from kdaverify.adapters.isolation.messages import (
    About,
    Entry,
    Pickled,
    ReportEnvironment,
    Returned,
    RunInside,
    RunKernel,
    Step,
    Way,
)
from kdaverify.adapters.isolation.remote import remote_activations, remote_stages
from kdaverify.adapters.isolation.supervisor import Supervisor
from kdaverify.adapters.poison import allocations_are_poisoned
from kdaverify.adapters.stages import StageCall
from kdaverify.limits import Limits
from kdaverify.operators.pointwise.call import ActivationCall
from oracles.signature import TensorCall

X = TypeVar("X")
_CASES: Final = itertools.count(1)
_CALLS_INSIDE: Final = 4
"""A function that runs beside the kernel calls it this often at most, so its time limit is this
many times that of a call."""


def housed(adapter: Adapter, spec: str, *, isolate: bool | None = None, limits: Limits) -> Adapter:
    """The adapter as it is to run: in a worker process, or here with the environment it needs.

    Args:
        spec: what `find` found it by.
        isolate: None leaves it to the adapter.
    """
    if adapter.isolated if isolate is None else isolate:
        return Isolated(adapter, spec, limits=limits)
    os.environ.update(adapter.surroundings())
    return adapter


class Isolated(Adapter):
    """Answers as `local` does; everything that runs a kernel is its twin's in the worker.

    What the kernel edits in its inputs is edited in the caller's too, and an output in the memory
    of an input lies in the caller's.

    Args:
        local: the adapter in this process, which is never called.
        spec: what `find` finds its twin by.
        way: from what is found to the twin.
        keeper: of the process; one of its own by default.
    Raises:
        Fault: by forward and step, for a call that gave no outputs.
        AdapterError: likewise, for one that never came to the kernel.
    """

    isolated = True

    def __init__(
        self,
        local: Adapter,
        spec: str,
        *,
        limits: Limits,
        way: Way = (),
        supervisor: Supervisor | None = None,
    ) -> None:
        for declared in Adapter.__annotations__.keys() - {"isolated"}:
            setattr(self, declared, getattr(local, declared))
        self._local, self._spec, self._limits, self._way = local, spec, limits, way
        surroundings = dict(local.surroundings())
        if supervisor is None or supervisor.surroundings != surroundings:
            # The driver of a device does not bear the system's limit: there, memory is only
            # watched.
            supervisor = Supervisor(
                spec, limits, surroundings=surroundings, limited=local.device == "cpu"
            )
        self._supervisor = supervisor
        self._others: dict[Step, Isolated] = {}
        self._case = (0, "")
        self._about: About | None = None
        self._called = False

    def contract(self, dtype: str) -> Any:
        return self._local.contract(dtype)

    def backward_contract(self, dtype: str) -> Any:
        return self._local.backward_contract(dtype)

    def missing(self) -> str | None:
        return self._local.missing()

    def supports(self, problem: Any) -> str | None:
        return self._local.supports(problem)

    def exposes(self, problem: Any) -> tuple[str, ...]:
        return self._local.exposes(problem)

    def differentiates(self, problem: Any) -> tuple[str, ...]:
        return self._local.differentiates(problem)

    def received(self, inputs: Any) -> Any:
        return self._local.received(inputs)

    def copied(self) -> tuple[str, ...]:
        return self._local.copied()

    def surroundings(self) -> Mapping[str, str]:
        return self._local.surroundings()

    def redeclared(self, conventions: Conventions) -> Adapter | None:
        other = self._local.redeclared(conventions)
        return None if other is None else self._beside(other, ("redeclared", conventions))

    def configured(self, options: Mapping[str, str]) -> Adapter:
        return self._beside(self._local.configured(options), ("configured", tuple(options.items())))

    def variants(self) -> Mapping[str, Adapter]:
        return {
            name: self._beside(variant, ("variant", name))
            for name, variant in self._local.variants().items()
        }

    def configurations(self) -> Mapping[str, Adapter]:
        return {
            name: self._beside(one, ("configuration", name))
            for name, one in self._local.configurations().items()
        }

    def inside(self, function: Callable[[Adapter], X]) -> X:
        request = RunInside(self._way, self._case, torch.get_num_threads(), function)
        try:
            reply = self._supervisor.reply_to(request, Pickled, calls=_CALLS_INSIDE)
            return pickle.loads(reply.value)  # noqa: S301 - from our own worker
        finally:
            self._called = self._supervisor.process() is not None

    def stages(self, dtype: str) -> Mapping[str, StageCall]:
        return remote_stages(self._local.stages(dtype), dtype, self._way, self._supervisor)

    def activations(self, dtype: str) -> Mapping[str, ActivationCall]:
        self._called = True  # once one of them has run, its twin has more to say
        return remote_activations(
            self._local.activations(dtype), dtype, self._way, self._supervisor
        )

    def begin(self, case: str) -> None:
        self._local.begin(case)
        self._case = (next(_CASES), case)

    def forward(self, inputs: TensorCall) -> Any:
        return self._call("forward", inputs)

    def step(self, inputs: TensorCall) -> Any:
        return self._call("step", inputs)

    def gradients(self, inputs: TensorCall, cotangents: Any) -> Any:
        return self._call(
            "gradients",
            inputs,
            {name: tensor for name, tensor in values_of(cotangents).items() if tensor is not None},
        )

    def proof(self) -> str:
        return self._reported().proof

    def environment(self) -> dict[str, str]:
        try:
            return dict(self._reported().environment)
        except CallFailure as fault:
            # A verdict is reported even where the process cannot return its environment.
            unknown = f"unknown: {fault.message.partition(chr(10))[0]}"
            return {
                **versions("torch"),
                "python": platform.python_version(),
                "device": self.device,
                "mode": unknown,
            }

    def process(self) -> int | None:
        """The number of the worker process, for a debugger; None before the first call."""
        return self._supervisor.process()

    def end(self) -> None:
        """Ends the worker processes; another call starts them again."""
        self._supervisor.end()
        for other in self._others.values():
            other.end()

    def _beside(self, other: Adapter, step: Step) -> Isolated:
        if step not in self._others:
            self._others[step] = Isolated(
                other,
                self._spec,
                limits=self._limits,
                way=(*self._way, step),
                supervisor=self._supervisor,
            )
        return self._others[step]

    # never written to
    def _call(self, entry: Entry, inputs: TensorCall, beside: Mapping[str, Tensor] = {}) -> Any:
        arena, given = self._supervisor.inputs, inputs.tensors()
        places = arena.lay_out({**given, **beside})
        call = RunKernel(
            self._way,
            entry,
            self._case,
            torch.get_num_threads(),
            places,
            inputs.numbers(),
            allocations_are_poisoned(),
        )
        try:
            returned = self._supervisor.reply_to(call, Returned)
        finally:
            self._called = self._supervisor.process() is not None
        for name, tensor in given.items():
            _show_edits(tensor, arena.view(places[name]))
        return unpack(returned.encoded, inputs, self._supervisor.outputs)

    def _reported(self) -> About:
        """What the twin reports, read after every call; the last report of one that ended."""
        if self._about is None or self._called:
            self._about = self._supervisor.reply_to(ReportEnvironment(self._way), About)
            self._called = False
        return self._about


@torch.no_grad()
def _show_edits(tensor: Tensor, seen: Tensor) -> None:
    if not same(tensor.cpu(), seen):
        tensor.copy_(seen)
