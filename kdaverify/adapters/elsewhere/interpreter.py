"""Another Python interpreter that answers calls, from the first call to the session's end."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NoReturn

from kdaverify.adapters.base import AdapterError
from kdaverify.adapters.exchange.manifest import INPUTS, OUTPUTS, ExportedCall
from kdaverify.adapters.exchange.recorder import RUNNER
from kdaverify.adapters.isolation.fault import CallFailure

SERVER: Final = RUNNER.with_name("serve.py")
# files that never reach a disk, in a folder of our own there
MEMORY: Final = Path("/dev/shm")  # noqa: S108
SHOWN: Final = 3
# These would bring the packages of this interpreter into the other one.
OURS: Final = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONSAFEPATH")


class PythonInterpreter:
    """Runs `serve.py` in the interpreter `python`.

    Args:
        python: its executable.
        arguments: what serve.py gets after the folder.
        limit: seconds until it must be ready, and until a call must be answered.
    """

    def __init__(self, python: Path, arguments: Sequence[str], limit: float) -> None:
        self.python, self._arguments, self._limit = python, tuple(arguments), limit
        self._process: subprocess.Popen[bytes] | None = None
        self._files: tempfile.TemporaryDirectory[str] | None = None
        self._errors: Any = None
        self._about: dict[str, str] = {}
        self._pending = b""
        self._refused = ""

    @property
    def folder(self) -> Path:
        """Where inputs and outputs lie; private to this process and its user."""
        if self._files is None:
            self._files = tempfile.TemporaryDirectory(
                prefix="kdaverify-", dir=MEMORY if os.access(MEMORY, os.W_OK) else None
            )
            for name in (INPUTS, OUTPUTS):
                (Path(self._files.name) / name).mkdir()
        return Path(self._files.name)

    def about(self) -> dict[str, str]:
        """Function and versions, as the other process says.

        Raises:
            AdapterError: it cannot be started.
        """
        self._start()
        return self._about

    def run(self, call: ExportedCall) -> None:
        """Runs `call`: its outputs, or its error, then lie in the folder.

        Raises:
            Fault: CRASH where the process ended, HANG past the limit; the next call starts another.
            AdapterError: it cannot be started.
        """
        process = self._start()
        os.ftruncate(self._errors.fileno(), 0)
        assert process.stdin is not None
        try:
            with suppress(BrokenPipeError):
                process.stdin.write(call.model_dump_json().encode() + b"\n")
                process.stdin.flush()
            reply = self._line(process)
        except BaseException:
            self.end()
            raise
        if reply is None:
            self._died("during this call")

    def end(self) -> None:
        """Ends the process and everything it started; a later call starts another."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            for stream in (self._process.stdin, self._process.stdout, self._errors):
                if stream is not None:
                    with suppress(BrokenPipeError):
                        stream.close()
        if self._files is not None:
            self._files.cleanup()
        self._process, self._files, self._pending = None, None, b""

    def _start(self) -> subprocess.Popen[bytes]:
        if self._refused:
            raise AdapterError(self._refused)
        if self._process is not None:
            return self._process
        command = [str(self.python), "-B", str(SERVER), str(self.folder), *self._arguments]
        environment = {name: value for name, value in os.environ.items() if name not in OURS}
        self._errors = tempfile.TemporaryFile("a+b")  # noqa: SIM115 # lives as long as the process
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            start_new_session=True,
        )
        ready = None
        with suppress(CallFailure):
            ready = self._line(self._process)
        if ready is None:
            self._refused = (
                f"elsewhere: {self.python} did not get ready within {self._limit:g} s:"
                f" {self._complaint()}"
            )
            self.end()
            raise AdapterError(self._refused)
        self._about = json.loads(ready)
        return self._process

    def _line(self, process: subprocess.Popen[bytes]) -> bytes | None:
        """The next line it says; None where it has ended."""
        assert process.stdout is not None
        until = time.monotonic() + self._limit
        while b"\n" not in self._pending:
            if not select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                raise CallFailure(
                    "HANG",
                    f"no answer from {self.python} within {self._limit:g} s (option limit); its"
                    " process was ended",
                )
            said = os.read(process.stdout.fileno(), 1 << 16)
            if not said:
                return None
            self._pending += said
        line, _, self._pending = self._pending.partition(b"\n")
        return line

    def _died(self, when: str) -> NoReturn:
        assert self._process is not None
        code = self._process.wait()
        how = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        said = self._complaint()
        self.end()
        raise CallFailure("CRASH", f"the kernel's process {how} {when}: {said}")

    def _complaint(self) -> str:
        """The last it wrote to its error stream."""
        self._errors.seek(0)
        lines = [
            line.strip()
            for line in self._errors.read().decode(errors="replace").splitlines()
            if line.strip()
        ]
        return " | ".join(lines[-SHOWN:]) or "it said nothing"
