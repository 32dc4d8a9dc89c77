"""A worker process from outside: started, spoken to, looked at, ended."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from kdaverify.adapters.isolation import messages
from kdaverify.adapters.isolation.arena import Arena
from kdaverify.adapters.isolation.heartbeat import Heartbeat
from kdaverify.adapters.isolation.stacks import SIGNAL

# The path of the harness, and nothing before it: a kernel finds its modules here and there.
_BOOT: Final = (
    "import json, sys; given = json.loads(sys.argv[1]); sys.path[:] = given.pop('path'); "
    "from kdaverify.adapters.isolation.worker import main; main(given)"
)
GRACE: Final = 5.0
_LAST_WORDS: Final = 2000
_MOST_LOGGED: Final = 1 << 20


class Process:
    """One worker process; it never lives longer than this object's process.

    Args:
        inputs, outputs: arenas, which outlive it.
        surroundings: added to the environment.
        folder: to run in.
        size: of memory beyond what it starts with, in bytes; 0 for no limit of the system's.
    """

    def __init__(
        self,
        spec: str,
        inputs: Arena,
        outputs: Arena,
        *,
        surroundings: Mapping[str, str],
        folder: Path,
        size: int,
    ) -> None:
        self.heart = Heartbeat.new()
        self.stacks, self._log = _file("stacks"), _file("log")
        self._held = ExitStack()
        self._held.callback(self.heart.close)
        for fd in (self.stacks, self._log):
            self._held.callback(os.close, fd)
        near, far = socket.socketpair()
        self.connection = Connection(near.detach())
        start = messages.Start(
            spec,
            far.fileno(),
            inputs.fd,
            outputs.fd,
            self.stacks,
            self.heart.fd,
            parent=os.getpid(),
            bytes=size,
        )
        given = json.dumps({**asdict(start), "path": sys.path})
        with far:
            self._popen = subprocess.Popen(
                [sys.executable, "-u", "-c", _BOOT, given],
                env={**os.environ, **surroundings},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                pass_fds=(start.connection, start.inputs, start.outputs, start.stacks, start.heart),
                # The terminal's Ctrl-C is for the harness, which ends its workers itself.
                start_new_session=True,
            )
        self.pid = self._popen.pid

    def alive(self) -> bool:
        return self._popen.poll() is None

    def ended(self, seconds: float) -> int | None:
        """The exit code, negative for a signal; None if it has not ended within `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            return self._popen.wait(seconds)
        return None

    def trim_log(self) -> None:
        """Forgets what a talkative kernel has printed, between two calls."""
        if os.fstat(self._log).st_size > _MOST_LOGGED:
            os.ftruncate(self._log, 0)

    def last_words(self) -> str:
        """The end of what it printed."""
        size = os.fstat(self._log).st_size
        return (
            os.pread(self._log, _LAST_WORDS, max(0, size - _LAST_WORDS))
            .decode(errors="replace")
            .strip()
        )

    def show_stacks(self) -> None:
        """Has it write its stacks; waits until they are complete."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, SIGNAL)
        size, deadline = 0, time.monotonic() + 1.0
        while time.monotonic() < deadline:
            time.sleep(0.05)
            before, size = size, os.fstat(self.stacks).st_size
            if size and size == before:
                return

    def leave(self) -> None:
        """Hangs up, which ends it; a process that does not go within GRACE is ended."""
        self.connection.close()
        self.ended(GRACE)
        self.end()

    def end(self) -> None:
        """Ends it and its children at once; harmless if it has ended."""
        self.connection.close()
        # Its children share its group.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        # A process that a driver holds cannot even be killed: then it is left behind.
        self.ended(GRACE)
        # Once alone: numbers of closed files are given to others.
        self._held.close()


def _file(name: str) -> int:
    """A file in memory that several writers append to."""
    import fcntl

    fd = os.memfd_create(f"kdaverify-{name}", os.MFD_CLOEXEC)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    return fd
