"""Whether a folder is what was exported, before anything is judged by it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kdaverify.adapters.exchange.manifest import INPUTS, NAME, OUTPUTS, ExchangeError, Manifest

SHOWN = 5
# What the runner leaves beside the outputs of a call.
ENDINGS = ("", ".error", ".part")


def audit(folder: Path, manifest: Manifest) -> None:
    """Checks the files of an export, and that nothing else lies among the outputs.

    Raises:
        ExchangeError: an incomplete export, a missing or changed input, a file without a call.
    """
    if not manifest.digest:
        raise ExchangeError(
            f"{folder / NAME}: the export was not completed; remove the folder and export again"
        )
    changed = [
        call.file for call in manifest.calls if _digest(folder / INPUTS / call.file) != call.sha256
    ]
    if changed:
        reported = _reported(folder / INPUTS, changed)
        raise ExchangeError(
            f"{reported}: missing, or not as exported; bring back the originals, or export and run"
            " again"
        )
    known = {call.file + ending for call in manifest.calls for ending in ENDINGS}
    extra = sorted(path.name for path in (folder / OUTPUTS).glob("*") if path.name not in known)
    if extra:
        raise ExchangeError(
            f"{_reported(folder / OUTPUTS, extra)}: no call of this export has such outputs; remove"
            " what does not belong here"
        )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def _reported(folder: Path, names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{folder}/{', '.join(names[:SHOWN])}{more}"
