"""Workers on this machine: processes with an executor each, so that a loss costs one task."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Final, cast

from kdaverify.campaign.engine import Engine, WorkerLostError, sight
from kdaverify.campaign.task import Orders, Task, TaskResult
from kdaverify.campaign.worker import Worker
from kdaverify.process import follow_parent

# Fresh interpreters: a fork of a process that has used torch or an accelerator is not sound.
_CONTEXT: Final = multiprocessing.get_context("spawn")
_worker: Worker | None = None


class LocalEngine(Engine):
    """Processes of this machine, started at their first task.

    Args:
        device: type of the device that the kernels run on.
    """

    def __init__(self, orders: Orders, *, places: int, device: str = "cpu") -> None:
        self.places, self._orders, self._device = places, orders, device
        self._executors: dict[int, ProcessPoolExecutor] = {}
        # Read when a worker imports its libraries: one core each, or they fight for them.
        os.environ.setdefault("OMP_NUM_THREADS", "1")

    def submit(self, place: int, task: Task, *, apart: bool) -> Hashable:
        try:
            return self._executor(place).submit(_answer, task, apart)
        except BrokenProcessPool:
            # Killed while idle.
            self._replace(place)
            return self._executor(place).submit(_answer, task, apart)

    def wait(self, pending: Sequence[Hashable]) -> Sequence[Hashable]:
        return list(
            wait(cast("Sequence[Future[TaskResult]]", pending), return_when=FIRST_COMPLETED).done
        )

    def answer(self, done: Hashable) -> TaskResult:
        try:
            return cast("Future[TaskResult]", done).result()
        except BrokenProcessPool as reason:
            raise WorkerLostError(str(reason)) from None

    def close(self) -> None:
        for executor in self._executors.values():
            # What a worker is doing is not waited for: it may never end.
            # public from Python 3.14 on, as kill_workers()
            for process in tuple(executor._processes.values()):  # noqa: SLF001
                process.terminate()
            executor.shutdown(cancel_futures=True)
        self._executors.clear()

    def _executor(self, place: int) -> ProcessPoolExecutor:
        if place not in self._executors:
            given = (self._orders, sight(self._device, place))
            self._executors[place] = ProcessPoolExecutor(
                1, mp_context=_CONTEXT, initializer=_begin, initargs=given
            )
        return self._executors[place]

    def _replace(self, place: int) -> None:
        self._executors.pop(place).shutdown(wait=False)


def _begin(orders: Orders, environment: Mapping[str, str]) -> None:
    """Makes the worker of this process."""
    # an initializer of the standard library has no other place to put it
    global _worker  # noqa: PLW0603
    # Ctrl-C is the campaign's affair: it ends its workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    follow_parent()
    os.environ.update(environment)
    _worker = Worker(orders)


# executors pass arguments by position
def _answer(task: Task, apart: bool) -> TaskResult:  # noqa: FBT001
    assert _worker is not None
    return _worker.answer(task, apart=apart)
