"""Keeps one worker process at work: starts it, waits within limits, replaces a lost one."""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Final, TypeVar

from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.isolation import postmortem
from kdaverify.adapters.isolation.arena import Arena
from kdaverify.adapters.isolation.fault import CallFailure
from kdaverify.adapters.isolation.memory import GIB, own_memory
from kdaverify.adapters.isolation.messages import Failed, Ready, Reply, Request
from kdaverify.adapters.isolation.process import Process
from kdaverify.adapters.isolation.stacks import is_compiling
from kdaverify.limits import Limits
from oracles.autograd import ForwardOnlyError

STARTING: Final = 180.0
"""Seconds that importing torch and finding the adapter may take; on a busy machine that is long."""
COMPILING: Final = 10
"""A call that is still being compiled or tuned has so many times its limit: fla's tuners beside 14
other processes took over 120 s."""
_LOOK: Final = 0.05
_Answer = TypeVar("_Answer", bound=Reply)


class Supervisor:
    """The worker process of one implementation, started at the first request.

    Args:
        spec: names the adapter, for find.
        surroundings: environment variables of the process.
        limited: whether the system is to refuse it memory past the limit; else it is only watched.
    """

    def __init__(
        self, spec: str, limits: Limits, *, surroundings: Mapping[str, str], limited: bool
    ) -> None:
        self.spec = spec
        self.limits = limits
        self.surroundings = dict(surroundings)
        self.limited = limited
        self.inputs, self.outputs = Arena.new("kdaverify-inputs"), Arena.new("kdaverify-outputs")
        self._folder = Path.cwd()
        self._process: Process | None = None
        self._ending: weakref.finalize[..., Supervisor] | None = None
        self._at_first = 0

    def reply_to(self, request: Request, answer: type[_Answer], *, calls: int = 1) -> _Answer:
        """Sends the request and waits for its answer.

        Args:
            calls: of the kernel that it may take: each has the time limit of one.

        Raises:
            Fault: there is none; if the process is lost, the next request starts another.
            AdapterError: the adapter refused, or was not found.
        """
        if self._process is None:
            self._process = self._start()
        elif not self._process.alive():
            fault = postmortem.death(self._process, self.limits, late=True)
            self._drop(self._process)
            raise fault
        self._process.trim_log()
        reply = self._exchange(self._process, request, calls * self.limits.seconds)
        assert isinstance(reply, answer)
        return reply

    def process(self) -> int | None:
        """The number of the process, if there is one."""
        return None if self._process is None else self._process.pid

    def end(self) -> None:
        """Lets the process leave; the next request starts another."""
        if self._ending is not None:
            self._ending()
        self._process = None

    def _start(self) -> Process:
        size = int(self.limits.gib * GIB) if self.limited else 0
        process = Process(
            self.spec,
            self.inputs,
            self.outputs,
            surroundings=self.surroundings,
            folder=self._folder,
            size=size,
        )
        # It goes with this object, or with the interpreter; not with a fork's copy of this object.
        self._ending = weakref.finalize(self, _end, process, os.getpid())
        self._at_first = 0
        ready = self._exchange(process, None, STARTING)
        assert isinstance(ready, Ready)
        self._at_first = ready.resident
        return process

    def _exchange(self, process: Process, request: Request | None, seconds: float) -> Reply:
        try:
            reply = self._reply(process, request, seconds)
        except BaseException:
            # Also for Ctrl-C: nobody would fetch the answer to an interrupted call.
            self._drop(process)
            raise
        if not isinstance(reply, Failed):
            return reply
        if request is None or reply.kind in ("CRASH", "HANG", "OOM"):
            self._drop(process)
        if reply.kind == "REFUSED":
            raise AdapterError(reply.message)
        if reply.kind == "FORWARD_ONLY":
            raise ForwardOnlyError(reply.message)
        raise CallFailure(reply.kind, reply.message)

    def _reply(self, process: Process, request: Request | None, seconds: float) -> Reply:
        started = time.monotonic()
        deadline = started + seconds
        try:
            if request is not None:
                process.connection.send(request)
            while not process.connection.poll(min(_LOOK, max(0.0, deadline - time.monotonic()))):
                self._look(process)
                if time.monotonic() >= deadline:
                    deadline = self._later(process, deadline, seconds, since=started)
            return process.connection.recv()
        except (EOFError, OSError):
            raise postmortem.death(process, self.limits) from None

    def _later(self, process: Process, deadline: float, seconds: float, *, since: float) -> float:
        """Another deadline for a kernel that is being compiled or tuned.

        Raises:
            Fault: it hangs.
        """
        spent = deadline - since
        process.show_stacks()
        if spent + seconds <= COMPILING * seconds and is_compiling(process.stacks):
            return deadline + seconds
        raise postmortem.hang(process, spent)

    def _look(self, process: Process) -> None:
        used = own_memory(process.pid) - self._at_first
        if self._at_first and used > self.limits.gib * GIB:
            raise postmortem.gluttony(process, used, self.limits)
        if not process.alive() and not process.connection.poll():
            raise EOFError

    def _drop(self, process: Process) -> None:
        if self._ending is not None:
            self._ending.detach()
        self._process = None
        process.end()


def _end(process: Process, owner: int) -> None:
    if os.getpid() == owner:
        process.leave()
