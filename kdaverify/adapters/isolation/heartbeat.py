"""A sign of life: a thread of the worker process writes the time where the harness can read it."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from typing import Final

BEAT: Final = 0.1
# Beats missed before the heart counts as stopped: a thread of a busy interpreter waits for its
# turn.
SILENCE: Final = 8 * BEAT
_TIME: Final = struct.Struct("d")


class Heartbeat:
    """One number in shared memory: the system's monotonic time of the last beat."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._page = mmap.mmap(fd, _TIME.size)

    @classmethod
    def new(cls) -> Heartbeat:
        fd = os.memfd_create("kdaverify-heart", os.MFD_CLOEXEC)
        os.ftruncate(fd, _TIME.size)
        return cls(fd)

    def beat(self) -> None:
        _TIME.pack_into(self._page, 0, time.monotonic())

    def silence(self) -> float:
        """Seconds since the last beat."""
        return time.monotonic() - _TIME.unpack_from(self._page, 0)[0]

    def start(self, parent: int) -> None:
        """Beats from a thread of this process, and ends the process once it has lost its parent."""
        threading.Thread(
            target=self._run, args=(parent,), name="kdaverify-heart", daemon=True
        ).start()

    def close(self) -> None:
        self._page.close()
        os.close(self.fd)

    def _run(self, parent: int) -> None:
        while os.getppid() == parent:
            self.beat()
            time.sleep(BEAT)
        os._exit(0)
