"""How a process that judges uses its machine: one core, and memory that it keeps."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from functools import cache
from typing import Final

# glibc's parameters of mallopt, and the largest threshold it takes for mapping a block by itself.
TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3
LARGEST_MMAP_THRESHOLD: Final = 32 << 20
KEPT_FREE: Final = 1 << 30


def use_one_core() -> None:
    """One thread, so that sums are made in one order on any machine;
    and no page of memory requested twice.
    """
    import torch

    torch.set_num_threads(1)
    _keep_freed_memory()


@cache
def _keep_freed_memory() -> None:
    """Has the C library keep up to 1 GiB of what is freed.

    Tolerances make and drop tensors of some MiB all the time: given back and requested again, every
    page of them would be a fault.
    """
    # Other libraries than glibc decide for themselves.
    with suppress(OSError, AttributeError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(MMAP_THRESHOLD, LARGEST_MMAP_THRESHOLD)
        library.mallopt(TRIM_THRESHOLD, KEPT_FREE)
