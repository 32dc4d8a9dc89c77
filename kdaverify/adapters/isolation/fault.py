"""Why a call of a kernel gave no outputs."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Final, Literal

import torch

from kdaverify.adapters.base import WrongKernelError

Kind = Literal["ERROR", "WRONG_KERNEL", "CRASH", "HANG", "OOM", "UNANSWERED"]
_MEMORY: Final = re.compile(
    r"out of memory|out_of_memory|can't allocate memory|cannot allocate"
    r" memory|std::bad_alloc|resource_exhausted|_alloc_failed",
    re.IGNORECASE,
)
_TORCH: Final = f"{Path(torch.__file__).parent}/"
# What CUDA and Ascend say once every later call on the device will fail too.
_DEVICE: Final = re.compile(
    r"illegal memory access|illegal_address|device-side assert|unspecified launch"
    r" failure|misaligned address|illegal instruction was enc"
    r"|invalid program counter|hardware stack error|ai ?core exception|ai ?cpu exception|vector"
    r" core exception|error code is 507\d{3}",
    re.IGNORECASE,
)


class CallFailure(Exception):
    """A call without outputs: of which kind, and in which words."""

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind: Kind = kind
        self.message = message


def fault_of(error: BaseException) -> CallFailure:
    """What a kernel's exception comes to: an error, memory exhausted, or a device that is lost."""
    if isinstance(error, CallFailure):
        return error
    if isinstance(error, WrongKernelError):
        return CallFailure("WRONG_KERNEL", str(error))
    if not isinstance(error, Exception):
        return CallFailure("CRASH", f"the kernel ended its process: {reported(error)}")
    said = f"the kernel raised {reported(error)}"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or _MEMORY.search(str(error)):
        return CallFailure("OOM", said)
    if _DEVICE.search(str(error)):
        return lost_device(error)
    return CallFailure("ERROR", said)


def lost_device(error: BaseException) -> CallFailure:
    """A fault after which nothing more can run on the device in this process."""
    return CallFailure("CRASH", f"the kernel left its device unusable: {reported(error)}")


def reported(error: BaseException) -> str:
    """Type, text and place of an exception, in one line."""
    frames = traceback.extract_tb(error.__traceback__)
    # A missing function of torch is raised in torch; what has to change is the line that called it.
    own = next(
        (frame for frame in reversed(frames) if not frame.filename.startswith(_TORCH)), frames[-1]
    )
    caller = "" if own is frames[-1] else f", called at {_place(own)}"
    return f"{type(error).__name__}: {error} ({_place(frames[-1])}{caller})"


def _place(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} in {frame.name}"
