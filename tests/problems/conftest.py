"""What the tests of problems draw from and change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from kdaverify.internals import BACKEND
from kdaverify.problems import Problem, settings_for

Drawing: TypeAlias = Callable[..., list[Any]]
Plain: TypeAlias = Callable[..., Problem]


@pytest.fixture
def drawn() -> Drawing:
    """What a strategy draws from a seed."""

    def draw(strategy: SearchStrategy[Any], count: int, *, backend: str = BACKEND) -> list[Any]:
        values: list[Any] = []

        @seed(0)
        @settings(
            settings_for("nightly"),
            max_examples=count,
            phases=[Phase.generate],
            backend=backend,
            database=None,
        )
        @given(strategy)
        def collect(value: Any) -> None:
            values.append(value)

        collect()
        return values

    return draw


@pytest.fixture
def plain() -> Plain:
    """A small problem with some fields changed."""

    def make(**changes: Any) -> Problem:
        fields: dict[str, Any] = {
            "B": 2,
            "T": 21,
            "H": 2,
            "HV": 4,
            "K": 16,
            "V": 24,
            "dtype": "fp32",
            "seed": 7,
            "gate": "log-sigmoid",
            "key": "random",
            "beta": "uniform",
            "state": "random",
            "value": "normal",
        }
        return Problem(**{**fields, **changes})

    return make
