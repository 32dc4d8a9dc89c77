"""A device that others fill is waited for; one that the kernel itself fills, and any other error,
is reported at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest
import torch

from kdaverify.adapters import device_memory
from kdaverify.adapters.device_memory import PAUSES, DeviceMemory, patiently, release

GIB: Final = 2**30
FILLED_BY_OTHERS: Final = DeviceMemory(total=80 * GIB, free=0, kept=GIB)
FILLED_BY_THE_KERNEL: Final = DeviceMemory(total=80 * GIB, free=0, kept=79 * GIB)


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found = list[float]()
    monkeypatch.setattr(device_memory.time, "sleep", found.append)
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: None)
    return found


def finding(monkeypatch: pytest.MonkeyPatch, memory: DeviceMemory | None) -> None:
    monkeypatch.setattr(DeviceMemory, "now", staticmethod(lambda: memory))


def failing(times: int, error: Exception) -> Callable[[], str]:
    left = [error] * times

    def call() -> str:
        if left:
            raise left.pop()
        return "outputs"

    return call


def is_shortage(error: Exception) -> bool:
    return isinstance(error, torch.OutOfMemoryError)


def test_a_call_is_made_again_while_others_hold_the_memory(
    monkeypatch: pytest.MonkeyPatch, slept: list[float]
) -> None:
    finding(monkeypatch, FILLED_BY_OTHERS)
    assert patiently(failing(2, torch.OutOfMemoryError()), is_shortage) == "outputs"
    assert tuple(slept) == PAUSES[:2]


def test_the_last_shortage_is_reported(monkeypatch: pytest.MonkeyPatch, slept: list[float]) -> None:
    finding(monkeypatch, FILLED_BY_OTHERS)
    with pytest.raises(torch.OutOfMemoryError):
        patiently(failing(len(PAUSES) + 1, torch.OutOfMemoryError()), is_shortage)
    assert tuple(slept) == PAUSES


@pytest.mark.parametrize(
    ("memory", "error"),
    [
        (FILLED_BY_THE_KERNEL, torch.OutOfMemoryError()),
        (None, torch.OutOfMemoryError()),
        (FILLED_BY_OTHERS, ValueError("wrong")),
    ],
)
def test_what_the_kernel_did_itself_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch,
    slept: list[float],
    memory: DeviceMemory | None,
    error: Exception,
) -> None:
    finding(monkeypatch, memory)
    with pytest.raises(type(error)):
        patiently(failing(1, error), is_shortage)
    assert slept == []


def test_without_an_accelerator_there_is_nothing_to_give_back() -> None:
    if not torch.accelerator.is_available():
        assert DeviceMemory.now() is None
    release()


def test_an_accelerator_that_reports_no_figures_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Silent:
        """As torch.mps: it can empty its cache,
        and says neither whether it was used nor what it holds.
        """

    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    monkeypatch.setattr(torch, "get_device_module", {torch.device("mps"): Silent}.get)
    assert DeviceMemory.now() is None
    release()


def test_what_an_allocator_keeps_goes_back_where_it_is_much(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Full:
        is_initialized = staticmethod(lambda: True)
        mem_get_info = staticmethod(lambda: (0, 80 * GIB))
        memory_reserved = staticmethod(lambda: GIB)

    emptied = list[bool]()
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    monkeypatch.setattr(torch, "get_device_module", {torch.device("cuda"): Full}.get)
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: emptied.append(True))
    release()
    assert emptied == [True]
    assert DeviceMemory.now() == DeviceMemory(80 * GIB, 0, GIB)
