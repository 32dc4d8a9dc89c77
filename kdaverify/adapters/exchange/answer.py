"""What came back for one call: a file of outputs, a note of what went wrong, or nothing."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from kdaverify.adapters.exchange.manifest import INPUTS, OUTPUTS, ExportedCall
from kdaverify.adapters.isolation.fault import CallFailure

ANSWERS = "answers"
AGAIN = "delete it, run run.py again where the kernel is, and bring it back"


@dataclass(frozen=True)
class ExchangedOutputs:
    """The outputs of one call.

    Args:
        outputs: by name, as they came; of a VJP the gradients.
        about: what the runner wrote beside them: function, versions, device.
    """

    outputs: dict[str, Tensor]
    about: dict[str, str]


def answer(folder: Path, call: ExportedCall, wanted: Sequence[str]) -> ExchangedOutputs:
    """The outputs of `call` in `folder`.

    Args:
        wanted: the names that they may have.
    Raises:
        Fault: UNANSWERED where there are none; ERROR or CRASH where the kernel raised or ended its
            process; ERROR where the file is cut off, answers another call, or holds something else.
    """
    path = folder / OUTPUTS / call.file
    if not path.exists():
        raise _unanswered(path)
    try:
        # it ships no types
        with safe_open(path, "pt") as file:
            about: dict[str, str] = file.metadata() or {}
            names = file.keys()  # not a mapping
            outputs: dict[str, Tensor] = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError, ValueError) as error:
        raise CallFailure(
            "ERROR",
            f"wanted a safetensors file, got one that is cut off or damaged ({error}); {AGAIN}",
        ) from None
    others = sorted(set(outputs) - set(wanted))
    if others:
        raise CallFailure(
            "ERROR", f"wanted {' and '.join(wanted)}, got {', '.join(others)} too; {AGAIN}"
        )
    if about.pop(ANSWERS, None) != _digest(folder, call):
        raise CallFailure(
            "ERROR",
            f"wanted outputs for {INPUTS}/{call.file} as it is here, got some made from other"
            f" inputs; {AGAIN}",
        )
    return ExchangedOutputs(outputs, about)


def _unanswered(path: Path) -> CallFailure:
    """Why there are no outputs, as the runner left it."""
    error, part = (path.with_name(path.name + ending) for ending in (".error", ".part"))
    if error.exists():
        said = error.read_text(errors="replace").partition("\n\nTraceback (most recent call last)")[
            0
        ]
        return CallFailure("ERROR", f"the kernel raised {said}")
    if part.exists():
        return CallFailure("CRASH", "the kernel's process ended during this call")
    return CallFailure(
        "UNANSWERED", "is not there; run run.py where the kernel is, and bring the file back"
    )


def _digest(folder: Path, call: ExportedCall) -> str:
    """SHA-256 of what the call was made from: its input file and its linked outputs."""
    linked = dict(call.links.values())
    content = [(folder / INPUTS / call.file).read_bytes()]
    content += [(folder / OUTPUTS / file).read_bytes() for file in linked]
    return hashlib.sha256(b"".join(content)).hexdigest()
