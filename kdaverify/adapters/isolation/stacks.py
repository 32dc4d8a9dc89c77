"""Where a worker process was when it died, or where it hangs: what faulthandler wrote, in short."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

SIGNAL: Final = signal.SIGUSR2
DEEPEST: Final = 3
_FRAME: Final = re.compile(r'\s+File "(?P<path>.*)", line (?P<line>\d+|\?\?\?) in (?P<name>.*)')
_FATAL: Final = re.compile(r"Fatal Python error: (.+)")
_MACHINERY: Final = str(Path(__file__).parents[1])
# Triton's compiler and tuner, TorchInductor and Dynamo, extensions built at the first call, XLA and
# Pallas.
_COMPILERS: Final = re.compile(
    r"/(triton/(compiler|backends|runtime/(autotuner|build))"
    r"|torch/(_inductor|_dynamo|utils/cpp_extension)|jax/_src/(compiler|pallas))\b"
)
_WORKER: Final = str(Path(__file__).with_name("worker.py"))


@dataclass(frozen=True)
class Frame:
    """One line of a stack."""

    path: str
    line: str
    name: str

    def __str__(self) -> str:
        return f"{self.name} ({self.path.rsplit('/', 1)[-1]}:{self.line})"


def watch_stacks(fd: int) -> None:
    """Writes this process's stacks to `fd` at a fatal signal or SIGNAL, whoever has the GIL."""
    faulthandler.enable(fd)
    faulthandler.register(SIGNAL, fd, all_threads=True)


def innermost(fd: int, *, thread: Literal["dying", "called"]) -> str:
    """The innermost frames of a thread, the kernel's own; "" where nothing was written.

    Args:
        fd: the file of `watch_stacks`.
        thread: "dying", where the signal struck; "called", the one that called the kernel.
    """
    frames = _frames(fd, thread)
    return ", called by ".join(map(str, _before_machinery(frames)[:DEEPEST])) if frames else ""


def is_compiling(fd: int) -> bool:
    """Whether the calling thread was in a compiler or tuner at the last stack dump."""
    return any(_COMPILERS.search(frame.path) for frame in _frames(fd, "called"))


def _frames(fd: int, thread: Literal["dying", "called"]) -> list[Frame]:
    """The frames of a thread, innermost first, as they were written last."""
    threads = _threads(os.pread(fd, os.fstat(fd).st_size, 0).decode(errors="replace"))
    if thread == "dying":
        wanted = [frames for current, frames in threads if current]
    else:
        wanted = [frames for _, frames in threads if any(frame.path == _WORKER for frame in frames)]
    return wanted[-1] if wanted else []


def death_in(text: str) -> tuple[str, bool]:
    """How a process died that ran a kernel: signal, innermost frames, inside a call or not.

    Args:
        text: what faulthandler wrote; "" where the process ended without a signal, or was killed.
    """
    fatal = _FATAL.search(text)
    if fatal is None:
        return "", False
    frames = next((frames for current, frames in _threads(text[fatal.start() :]) if current), [])
    where = ", called by ".join(map(str, _before_machinery(frames)[:DEEPEST]))
    return f"{fatal[1]}{where and f' in {where}'}", any(
        frame.path.startswith(_MACHINERY) for frame in frames
    )


def _threads(text: str) -> list[tuple[bool, list[Frame]]]:
    """Whether a thread is the current one, and its frames, innermost first."""
    threads: list[tuple[bool, list[Frame]]] = []
    for line in text.splitlines():
        if line.startswith(("Thread 0x", "Current thread 0x")):
            threads.append((line.startswith("Current"), []))
        elif threads and (match := _FRAME.fullmatch(line)):
            threads[-1][1].append(Frame(match["path"], match["line"], match["name"]))
    return threads


def _before_machinery(frames: list[Frame]) -> list[Frame]:
    kernel: list[Frame] = []
    for frame in frames:
        if frame.path.startswith(_MACHINERY):
            break
        kernel.append(frame)
    return kernel or frames
