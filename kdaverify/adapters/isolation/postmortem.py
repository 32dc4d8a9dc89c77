"""What is said of a worker process that was lost: how, where, and its last words."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Final

from kdaverify.adapters.isolation.fault import CallFailure, Kind
from kdaverify.adapters.isolation.heartbeat import SILENCE
from kdaverify.adapters.isolation.memory import GIB
from kdaverify.adapters.isolation.process import GRACE, Process
from kdaverify.adapters.isolation.stacks import innermost
from kdaverify.limits import Limits

_LINES: Final = 5


def death(process: Process, limits: Limits, *, late: bool = False) -> CallFailure:
    """The process ended, or hung up.

    Args:
        late: it did so after its last answer, before it was called again.
    """
    kind, how = _end(process, limits)
    blame = " after its last answer, so the call before this one is to blame" if late else ""
    return CallFailure(kind, f"{how}{blame}{_said(process)}")


def _end(process: Process, limits: Limits) -> tuple[Kind, str]:
    code = process.ended(GRACE)
    if code is None:
        return "CRASH", "the kernel closed the connection of its process"
    if code >= 0:
        return (
            "CRASH",
            (
                f"the kernel ended its process with exit code {code} (os._exit, or exit in native"
                " code)"
            ),
        )
    name = signal.Signals(-code).name
    if code == -signal.SIGKILL:
        return (
            "OOM",
            "the kernel's process was killed from outside, as the system does when memory runs out",
        )
    if "std::bad_alloc" in process.last_words():
        return (
            "OOM",
            (
                f"the kernel's process could not get memory (its limit is {limits.gib:g} GiB,"
                f" --memory-limit) and died of {name}"
            ),
        )
    where = innermost(process.stacks, thread="dying")
    return "CRASH", f"the kernel's process died of {name}{where and f' in {where}'}"


def gluttony(process: Process, used: int, limits: Limits) -> CallFailure:
    """The process holds more memory than it may."""
    return CallFailure(
        "OOM",
        f"the kernel took {used / GIB:.2f} GiB of memory, its limit is {limits.gib:g} GiB"
        f" (--memory-limit){_where(process)}",
    )


def hang(process: Process, seconds: float) -> CallFailure:
    """The process has not answered in time; its stacks have just been written."""
    silence = process.heart.silence()
    if _stopped(process.pid):
        how = "its process is stopped"
    elif silence > SILENCE:
        how = (
            f"its interpreter has stood still for {silence:.1f} s: native code that holds the"
            " interpreter lock"
        )
    else:
        how = (
            "its interpreter runs: a loop or a wait in Python, or native code that let go of the"
            " interpreter lock"
        )
    return CallFailure(
        "HANG",
        f"no answer within {seconds:g} s (--time-limit); {how}{_seen(process)}{_said(process)}",
    )


def _where(process: Process) -> str:
    process.show_stacks()
    return _seen(process)


def _seen(process: Process) -> str:
    """Where the kernel was when the stacks were last written."""
    where = innermost(process.stacks, thread="called")
    return f"; in {where}" if where else ""


def _said(process: Process) -> str:
    lines = process.last_words().splitlines()[-_LINES:]
    return "\nit last printed:\n  " + "\n  ".join(lines) if lines else ""


def _stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False
