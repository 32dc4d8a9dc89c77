"""Large cases are judged on an accelerator, and on the CPU where the accelerator has no memory
left: with the same verdict.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from kdaverify.adapters import find
from kdaverify.checks import outcome
from kdaverify.checks.forward import forward
from kdaverify.operators.kda import operator
from kdaverify.problems import Problem

PROBLEM = Problem(
    B=1,
    T=9,
    H=1,
    HV=2,
    K=4,
    V=6,
    dtype="bf16",
    gate="mild",
    key="random",
    beta="uniform",
    state="random",
    value="normal",
    seed=1,
)
CPU = torch.device("cpu")


@pytest.fixture
def starved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Two benches, the first of which has no memory; the list names what was tried."""
    tried: list[str] = []
    emulate = operator.emulate

    def once(*arguments: Any, **named: Any) -> Any:
        tried.append("bench")
        if len(tried) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return emulate(*arguments, **named)

    def benches(*_: Any) -> tuple[torch.device, ...]:
        return CPU, CPU

    monkeypatch.setenv("KDAVERIFY_CACHE", str(tmp_path))
    monkeypatch.setattr(operator, "emulate", once)
    monkeypatch.setattr(outcome, "_benches", benches)
    monkeypatch.setattr(torch.accelerator, "empty_cache", lambda: tried.append("emptied"))
    return tried


def test_a_full_accelerator_changes_no_verdict(
    monkeypatch: pytest.MonkeyPatch, starved: list[str]
) -> None:
    found = forward(find("eager"), PROBLEM)
    assert starved == ["bench", "emptied", "bench"]
    monkeypatch.undo()
    assert found == forward(find("eager"), PROBLEM)


def test_memory_that_is_nowhere_is_an_error(
    monkeypatch: pytest.MonkeyPatch, starved: list[str]
) -> None:
    def only(*_: Any) -> tuple[torch.device, ...]:
        return (CPU,)

    monkeypatch.setattr(outcome, "_benches", only)
    with pytest.raises(torch.OutOfMemoryError):
        forward(find("eager"), PROBLEM)
    assert starved == ["bench"]
