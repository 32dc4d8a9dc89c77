"""Processes that need the same kernel compile it one after another, and different ones at once."""

from __future__ import annotations

import fcntl
import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kdaverify.adapters import triton_device
from kdaverify.adapters.triton_device import compile_once, turn


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(triton_device, "COMPILING", tmp_path)
    return tmp_path


def is_taken(folder: Path, name: str) -> bool:
    """Whether another process would have to wait."""
    with (folder / hashlib.sha256(name.encode()).hexdigest()[:32]).open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_name_has_one_process_at_a_time_and_is_free_after_an_exception(folder: Path) -> None:
    def fail() -> None:
        with turn("a"):
            assert is_taken(folder, "a")
            assert not is_taken(folder, "b")
            raise ValueError("of the compiler")

    with pytest.raises(ValueError, match="of the compiler"):
        fail()
    assert not is_taken(folder, "a")


def test_triton_compiles_inside_a_turn_of_kernel_and_constants(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jit = pytest.importorskip("triton.runtime.jit")
    taken = list[bool]()

    def compiles(self: Any, key: str, *rest: Any) -> tuple[Any, ...]:
        taken.append(is_taken(folder, f"here.kernel {key}"))
        return (key, *rest)

    monkeypatch.setattr(jit.JITFunction, "_do_compile", compiles)
    compile_once()

    launched = SimpleNamespace(fn=SimpleNamespace(__module__="here", __name__="kernel"))
    assert jit.JITFunction._do_compile(launched, "K=64", 1) == ("K=64", 1)
    assert taken == [True]
