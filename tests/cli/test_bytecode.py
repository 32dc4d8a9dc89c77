"""Processes of all sessions share compiled modules where Python keeps none."""

from __future__ import annotations

import sys
from importlib.util import cache_from_source, find_spec
from pathlib import Path

import pytest

from kdaverify.cli.apart import environment_of_session

PREFIX, NONE_WRITTEN = "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"


@pytest.fixture(autouse=True)
def uncompiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which nothing is compiled, and Python writes no bytecode."""
    monkeypatch.delenv(PREFIX, raising=False)
    monkeypatch.setenv("KDAVERIFY_CACHE", str(tmp_path))
    monkeypatch.setenv(NONE_WRITTEN, "1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", str(tmp_path / "none"))


def test_what_is_not_compiled_is_compiled_once_for_all_sessions(tmp_path: Path) -> None:
    found = environment_of_session()
    assert found[PREFIX] == str(tmp_path / "bytecode") and NONE_WRITTEN not in found


def test_what_is_compiled_is_not_compiled_again(tmp_path: Path) -> None:
    torch = find_spec("torch")
    assert torch is not None and torch.origin is not None
    compiled = Path(cache_from_source(torch.origin))
    compiled.parent.mkdir(parents=True)
    compiled.touch()
    found = environment_of_session()
    assert PREFIX not in found and found[NONE_WRITTEN] == "1"


def test_where_python_writes_bytecode_it_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.delenv(NONE_WRITTEN)
    assert PREFIX not in environment_of_session()


def test_a_folder_that_takes_no_bytecode_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)

    def denied(path: Path, mode: int) -> bool:
        del path, mode
        return False

    monkeypatch.setattr("os.access", denied)
    assert environment_of_session()[PREFIX] == str(tmp_path / "bytecode")
