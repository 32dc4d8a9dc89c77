"""Which accelerator a worker sees: one each."""

from __future__ import annotations

import os
from typing import Final

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
