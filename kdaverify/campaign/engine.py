"""What every engine can do: keep workers, give each a task, and notice when one is gone; which
accelerator each of them sees.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Hashable, Sequence
from typing import Final

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


RESOURCES: Final = {"cuda": "GPU", "npu": "NPU", "tpu": "TPU"}
"""What Ray calls an accelerator, by type of torch device."""
_VISIBLE: Final = {
    "cuda": "CUDA_VISIBLE_DEVICES",
    "npu": "ASCEND_RT_VISIBLE_DEVICES",
    "tpu": "TPU_VISIBLE_CHIPS",
}


def places(device: str) -> int:
    """How many workers suit this machine: one a device, or one a core for kernels on the CPU."""
    if device not in _VISIBLE:
        return len(os.sched_getaffinity(0))
    return len(_devices(device))


def sight(device: str, place: int) -> dict[str, str]:
    """The environment in which the worker of a place sees its own device alone; {} for the CPU."""
    if device not in _VISIBLE:
        return {}
    devices = _devices(device)
    return {_VISIBLE[device]: devices[place % len(devices)]}


def _devices(device: str) -> list[str]:
    """By what the environment allows, else as many as torch counts, else one."""
    import torch

    allowed = os.environ.get(_VISIBLE[device], "")
    if allowed:
        return allowed.split(",")
    found = torch.accelerator.current_accelerator()
    count = torch.accelerator.device_count() if found is not None and found.type == device else 1
    return [str(number) for number in range(count)]
