"""Why a call of a kernel gave no outputs."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import torch

import kdaverify
import oracles
from kdaverify.adapters.base import WrongKernelError

Kind = Literal["ERROR", "WRONG_KERNEL", "CRASH", "HANG", "OOM", "UNANSWERED"]
_MEMORY: Final = re.compile(
    r"out of memory|out_of_memory|can't allocate memory|cannot allocate"
    r" memory|std::bad_alloc|resource_exhausted|_alloc_failed",
    re.IGNORECASE,
)
_TORCH: Final = f"{Path(torch.__file__).parent}/"
_HARNESS, _ORACLES = (f"{Path(str(package.__file__)).parent}/" for package in (kdaverify, oracles))
_LIBRARIES: Final = tuple(
    f"{sysconfig.get_path(kind)}/" for kind in ("stdlib", "purelib", "platlib")
)
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
    return f"{type(error).__name__}: {error} ({_place(frames[-1])}{_caller(frames)})"


def _caller(frames: Sequence[traceback.FrameSummary]) -> str:
    """The line that has to change, where the last frame is a library's: the last of the user's own
    files; of a kernel that is installed itself, the last outside torch.
    """
    own = next((frame for frame in reversed(frames) if not _installed(frame)), None)
    outside = (frame for frame in reversed(frames) if not frame.filename.startswith(_TORCH))
    last = own or next(outside, frames[-1])
    if last is frames[-1]:
        return ""
    # The backward of torch's own operations has no frame of the kernel's.
    if last.filename.startswith(_ORACLES):
        return ", in the backward of its outputs"
    return f", called at {_place(last)}"


def _installed(frame: traceback.FrameSummary) -> bool:
    return frame.filename.startswith((_TORCH, _ORACLES, _HARNESS, *_LIBRARIES, "<"))


def _place(frame: traceback.FrameSummary) -> str:
    return f"{frame.filename.rsplit('/', 1)[-1]}:{frame.lineno} in {frame.name}"
