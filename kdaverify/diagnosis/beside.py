"""A second process with the same kernel, in which one part of a diagnosis runs beside the rest."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

from kdaverify.adapters.base import Adapter

X = TypeVar("X")
LATE: Final = 10.0
"""Seconds beyond the end of the rest after which it is ended: it may end what it has begun, and a
case takes 5 s at most."""


class Beside:
    """The second process; it is started at once, as its imports take 3 s.

    Args:
        second: the same kernel in a process of its own.
    """

    def __init__(self, second: Adapter) -> None:
        self._second = second
        # The process ends with the thread that started it: one thread for all.
        self._thread = ThreadPoolExecutor(1)
        self._thread.submit(second.environment)

    def begin(self, function: Callable[[Adapter], X]) -> Future[X]:
        """Has `function` run on the kernel there.

        Args:
            function: of a module, or a partial of one, so that its name reaches the process.
        """
        return self._thread.submit(self._second.inside, function)

    def result(self, begun: Future[X], otherwise: X) -> X:
        """What a function returned; `otherwise` if it raised, took its process, or is late."""
        # The verdicts must not be lost, whatever a kernel does there.
        with suppress(Exception):
            return begun.result(LATE)
        return otherwise

    def close(self) -> None:
        """Ends the process; what has not begun there does not run."""
        self._second.end()
        self._thread.shutdown(cancel_futures=True)
