"""The device that kernels believe to run on: none, or a stand-in for an Ascend NPU."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import torch
from torch.utils import backend_registration

AI_CORES: Final = 2
VECTOR_CORES: Final = 4
UNIFIED_BUFFER_BITS: Final = 192 * 1024 * 8  # Atlas A2
CAPACITY: Final = "ASCEND_UB_CAPACITY_BITS"


@dataclass(frozen=True)
class Driver:
    """As much of a Triton driver as launching code requests.

    Args:
        name: the backend that its target names.
        properties: what the device says of itself.
    """

    name: str
    properties: dict[str, int] = field(default_factory=dict[str, int])

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget(self.name, "interpreted", 0)

    def get_current_device(self) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def utils(self) -> Any:
        return SimpleNamespace(get_device_properties=lambda _device=0: dict(self.properties))


def install(backend: str) -> None:
    """Makes the stand-in for `backend` Triton's active driver.

    Kernels for CUDA see a target named cpu, on a machine with a GPU too: what runs does not depend
    on where.
    """
    from triton.runtime.driver import driver

    stand_in: Any = Driver("cpu")
    if backend == "npu":
        _name_npu()
        stand_in = Driver(
            "npu", {"num_aicore": AI_CORES, "num_vectorcore": VECTOR_CORES, "max_shared_mem": 1}
        )
    driver.set_active(stand_in)


def _name_npu() -> None:
    """Registers a device type npu as torch's own extension point does; no tensor lives there."""
    os.environ.setdefault(CAPACITY, str(UNIFIED_BUFFER_BITS))
    backend_registration.rename_privateuse1_backend("npu")
    register = torch._register_device_module  # noqa: SLF001 # pyright: ignore[reportPrivateUsage]
    register("npu", Npu("torch.npu"))


class Npu(ModuleType):
    """What launching code and autocast read of `torch.npu`."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return False  # there is nothing that could be lost

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def device(self, _index: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def synchronize(self, _device: Any = None) -> None:
        """Nothing is ever in flight."""

    def current_stream(self, _device: Any = None) -> None:
        """There are no streams."""

    def is_current_stream_capturing(self) -> bool:
        return False

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16, torch.float32]

    def manual_seed_all(self, _seed: int) -> None:
        """It draws no numbers."""

    def _is_in_bad_fork(self) -> bool:
        return False
