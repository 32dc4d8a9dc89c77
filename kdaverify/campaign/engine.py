"""What every engine can do: keep workers, give each a task, and notice when one is gone."""

from __future__ import annotations

import abc
from collections.abc import Hashable, Sequence

from kdaverify.campaign.task import Task, TaskResult


class WorkerLostError(RuntimeError):
    """A worker is gone, and with it the answer it was working on."""


class EngineError(RuntimeError):
    """An engine that is missing or keeps no worker; the message says what is needed."""


class Engine(abc.ABC):
    """Workers in numbered places, one task at a time in each.

    Args:
        places: how many workers there are.
    """

    places: int

    @abc.abstractmethod
    def submit(self, place: int, task: Task, *, apart: bool) -> Hashable:
        """Gives an idle worker a task, or a new worker; what comes back stands for the answer."""

    @abc.abstractmethod
    def wait(self, pending: Sequence[Hashable]) -> Sequence[Hashable]:
        """Waits until an answer is there or its worker gone; gives all of which that holds."""

    @abc.abstractmethod
    def answer(self, done: Hashable) -> TaskResult:
        """The answer.

        Raises:
            WorkerLostError: the worker is gone.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Ends every worker, whatever it does."""
