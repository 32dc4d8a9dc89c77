"""A folder with a kernel and a suite of its own, and pytest run in it with the plugin."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kdaverify.verdicts.record import read
from kdaverify.verdicts.verdict import Verdict
from tests.rows import PORT, ROOT, SUITE

# pytester forgets what its sessions import: polars does not stand being imported twice, and of a
# class imported twice nothing is caught.
for module in (
    "polars",
    "kdaverify.adapters",
    "kdaverify.checks.conventions",
    "kdaverify.operators.kda.operator",
):
    importlib.import_module(module)

Pytest = Callable[..., pytest.RunResult]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Writes port.py and one suite for every property named, whose body is given."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)

    def write(**bodies: str) -> None:
        pytester.makepyfile(
            port=PORT, **{f"test_{name}": SUITE + body for name, body in bodies.items()}
        )

    return write


@pytest.fixture
def run(pytester: pytest.Pytester) -> Pytest:
    """Runs pytest with the plugin on the folder."""

    def call(*words: Any) -> pytest.RunResult:
        return pytester.runpytest_inprocess(
            "-p",
            "kdaverify.plugin",
            "--impl",
            "port.py",
            "-p",
            "no:cacheprovider",
            "--diagnosis=0",
            *words,
        )

    return call


@pytest.fixture
def rows(pytester: pytest.Pytester, run: Pytest) -> Callable[..., list[Verdict]]:
    """Runs pytest with the plugin and reads the record."""

    def call(*words: Any, name: str = "record.jsonl") -> list[Verdict]:
        record = Path(pytester.path) / name
        run("--record", record, *words)
        return [verdict.model_copy(update={"duration_s": 0.0}) for verdict in read(record).verdicts]

    return call
