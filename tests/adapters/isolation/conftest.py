"""The planted kernels, in a worker process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import pytest
import torch

from kdaverify.adapters import Adapter
from kdaverify.adapters.isolation import Isolated
from kdaverify.limits import Limits
from kdaverify.problems import Problem
from tests.adapters.isolation.planted import PLANTED

SPEC: Final = "tests.adapters.isolation.planted:PLANTED"
Isolate = Callable[..., Isolated]


@pytest.fixture(scope="module")
def isolate() -> Iterator[Isolate]:
    """Isolates the planted kernels under limits of their own;
    their process ends with the module's tests.
    """
    made: list[Isolated] = []

    def start(seconds: float = 60.0, gib: float = 1.0, adapter: Adapter = PLANTED) -> Isolated:
        made.append(Isolated(adapter, SPEC, limits=Limits(seconds=seconds, gib=gib)))
        return made[-1]

    torch.set_num_threads(1)
    yield start
    for isolated in made:
        isolated.end()


@pytest.fixture(scope="module")
def planted(isolate: Isolate) -> Isolated:
    """All of them, under limits that only a fault exceeds."""
    return isolate()


@pytest.fixture(scope="session")
def problem() -> Problem:
    return Problem(
        B=1,
        T=9,
        H=1,
        HV=2,
        K=4,
        V=6,
        dtype="fp32",
        gate="mild",
        key="random",
        beta="uniform",
        state="random",
        value="normal",
        seed=1,
    )


@pytest.fixture
def isolated(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Isolated]]:
    """Isolates an adapter of the test's own module, by its name; its process ends with the test."""
    made: list[Isolated] = []

    def get(name: str) -> Isolated:
        made.append(
            Isolated(
                getattr(request.module, name), f"{request.module.__name__}:{name}", limits=Limits()
            )
        )
        return made[-1]

    yield get
    for adapter in made:
        adapter.end()
