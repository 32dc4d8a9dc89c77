"""Which implementations are certainly wrong by now; borderline failures then need no re-test.

Known to all processes of a session that have a folder in common; else to each by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import pytest

from kdaverify.plugin.crashes import crash_files
from kdaverify.verdicts.verdict import Verdict

_WRONG = pytest.StashKey[set[str]]()


def is_wrong(config: pytest.Config, spec: str) -> bool:
    """Whether a test of this implementation failed for certain."""
    mark = _mark(config, spec)
    return spec in config.stash.setdefault(_WRONG, set()) or (mark is not None and mark.exists())


def note_failures(config: pytest.Config, spec: str, verdicts: Sequence[Verdict]) -> None:
    """Keeps that one of the verdicts of a test is a failure for certain, if one is."""
    from kdaverify.verdicts.recheck import certain

    if is_wrong(config, spec) or not certain(verdicts):
        return
    config.stash[_WRONG].add(spec)
    mark = _mark(config, spec)
    if mark is not None:
        mark.touch()


def _mark(config: pytest.Config, spec: str) -> Path | None:
    files = crash_files(config)
    if files is None:
        return None
    return files.folder / f"wrong-{hashlib.sha256(spec.encode()).hexdigest()[:16]}"
