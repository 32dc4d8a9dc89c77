"""How much memory a process has to itself, and how much it may get."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Final

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")
GIB: Final = 1 << 30


def own_memory(pid: int) -> int:
    """Bytes resident and not shared with files or other processes; 0 once the process has ended."""
    return _field(pid, 1) - _field(pid, 2)


def limit_own_memory(size: int) -> None:
    """Refuses this process `size` bytes more of data: its next allocation fails, as if full.

    Counted is private writable memory, touched or not. A limit on addresses would stop CUDA, which
    reserves terabytes of them.
    """
    data = _field(os.getpid(), 5) + size
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(
        resource.RLIMIT_DATA, (data if hard == resource.RLIM_INFINITY else min(data, hard), hard)
    )


def lift_limit() -> None:
    """Undoes `limit_own_memory`."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _field(pid: int, number: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[number]) * _PAGE
    except (OSError, IndexError):
        return 0
