"""How a process that judges uses its machine: one core, memory that it keeps, and no longer than
the process that started it.
"""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import threading
from contextlib import suppress
from functools import cache
from typing import Final

# glibc's parameters of mallopt, and the largest threshold it takes for mapping a block by itself.
TRIM_THRESHOLD: Final = -1
MMAP_THRESHOLD: Final = -3
LARGEST_MMAP_THRESHOLD: Final = 32 << 20
KEPT_FREE: Final = 1 << 30


def use_one_core() -> None:
    """One thread, so that sums are made in one order on any machine; no page of memory requested
    twice; and no module searched for garbage.
    """
    import torch

    torch.set_num_threads(1)
    _keep_freed_memory()
    _leave_out_what_stays()


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


@cache
def _leave_out_what_stays() -> None:
    """Has the garbage collector pass over what is there already: some 300,000 objects of modules
    and collected tests, which live as long as the process. Each full search of them took 0.09 s of
    CPU, 2 % of a smoke in all.
    """
    gc.freeze()


def follow_parent() -> None:
    """Ends this process with the one that started it, also where that was killed."""
    threading.Thread(target=_follow, name="kdaverify-follow-parent", daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
