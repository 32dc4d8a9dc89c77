"""An accelerator's memory shared by processes: unneeded goes back, shortages are waited out.

Fifteen processes with a kernel each filled an H100 with blocks that their allocators kept: 18 calls
of at most 8 MiB were reported out of memory, and each cost its kernel a process.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import torch

X = TypeVar("X")

KEPT: Final = 2**28
"""Bytes that an allocator may keep between two calls: below this, giving them back costs more calls
of the driver than it helps others."""
PAUSES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 64.0)
"""Seconds between tries: the largest problem of a panel, of 8,192 tokens and 32 heads, holds its
memory for some ten, on a host with 64 busy cores for 98. There a call of 90 tokens was reported out
of memory after the 63 s that this was before."""
SHARE: Final = 0.5
"""Of a device: where others hold more, a shortage is taken for theirs."""


@dataclass(frozen=True)
class DeviceMemory:
    """Bytes of the accelerator: all, free, and kept by this process's allocator."""

    total: int
    free: int
    kept: int

    @property
    def others(self) -> int:
        """What other processes hold."""
        return self.total - self.free - self.kept

    @staticmethod
    def now() -> DeviceMemory | None:
        """As it is; None where this process uses no accelerator, or one that does not say."""
        module = _used()
        if module is None:
            return None
        free, total = module.mem_get_info()
        return DeviceMemory(total, free, module.memory_reserved())


def release() -> None:
    """Gives back what the allocator keeps for calls to come, where it is much."""
    module = _used()
    if module is not None and module.memory_reserved() > KEPT:
        torch.accelerator.empty_cache()


def _used() -> Any:
    """The torch module of the accelerator in use; None where its memory is not reported."""
    device = torch.accelerator.current_accelerator()
    module: Any = None if device is None else torch.get_device_module(device)
    known = all(
        hasattr(module, name) for name in ("is_initialized", "mem_get_info", "memory_reserved")
    )
    return module if known and module.is_initialized() else None


def patiently(call: Callable[[], X], is_shortage: Callable[[Exception], bool]) -> X:
    """What `call` returns, tried again while memory lacks that other processes hold.

    Args:
        call: may be made any number of times.
        is_shortage: whether an exception says that memory lacks.
    Raises:
        Exception: that of the last try.
    """
    for pause in PAUSES:
        try:
            return call()
        except Exception as error:
            now = DeviceMemory.now() if is_shortage(error) else None
            if now is None or now.others <= SHARE * now.total:
                raise
        torch.accelerator.empty_cache()
        time.sleep(pause)
    return call()
