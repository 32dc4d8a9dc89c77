"""The files that suites lie in, and what each tests."""

from __future__ import annotations

from pathlib import Path

import kdaverify
from kdaverify.operator import DEFAULT, call_operator


def property_of(suite: Path) -> str:
    """suites/kda/test_resume.py tests "resume"."""
    return suite.stem.removeprefix("test_")


def belongs(suite: Path, op: str) -> bool:
    """Whether a suite tests an operator:
    it lies in the folder of that one's suites, or in no operator's.
    """
    folders = {path.name for path in kdaverify.suites_folder().iterdir() if path.is_dir()}
    return suite.parent.name == call_operator(op).suites or suite.parent.name not in folders


def suite_files(op: str = DEFAULT) -> list[Path]:
    """The suites of an operator, by name."""
    return [
        path for path in sorted(kdaverify.suites_folder().rglob("test_*.py")) if belongs(path, op)
    ]


def shipped(op: str = DEFAULT) -> set[str]:
    """The property of every suite of an operator."""
    return {property_of(path) for path in suite_files(op)}
