"""The one place that touches private parts of Hypothesis, pytest and pytest-xdist.

None of this is promised to stay: pyproject bounds the versions, and `tests/test_internals.py` says
which part moved. What it is for: cases that depend on the seed alone, tests that are read without
running pytest, and crashed workers that are replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from random import Random
from typing import Any, Final

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.control import BuildContext
from hypothesis.database import ExampleDatabase, choices_to_bytes
from hypothesis.errors import StopTest, UnsatisfiedAssumption
from hypothesis.internal.conjecture import providers
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, HypothesisProvider

BACKEND: Final = "kdaverify"


class Provider(HypothesisProvider):
    """A source of Hypothesis choices that depends on the seed alone.

    Hypothesis mixes constants found in the source of imported local modules into what it generates,
    so a problem made from a given seed would change with what else was imported. It also makes
    bounded integers through logarithms, whose last bit differs between machines.
    """

    def _maybe_draw_constant(self, *_choice: Any, **_options: Any) -> None:
        return None

    def _draw_integer_from_distribution(self, min_value: int | None, max_value: int | None) -> int:
        if min_value is None or max_value is None:
            return super()._draw_integer_from_distribution(min_value, max_value)
        assert self._random is not None
        return self._random.randint(min_value, max_value)


AVAILABLE_PROVIDERS[BACKEND] = Provider


def without_constants() -> None:
    """Spares Hypothesis the search of every local module's source for constants, at the end of a
    collection: `Provider` takes none, and it was 0.7 s of a process, a tenth of the smoke of a
    small operator. A test of another provider, if one comes, has them searched once a further
    module is there.
    """
    loaded = len(sys.modules)
    providers._sys_modules_len = loaded  # pyright: ignore[reportPrivateUsage] # noqa: SLF001


def generated(
    strategy: st.SearchStrategy[Any], source: Random
) -> tuple[Any, tuple[Any, ...]] | None:
    """A strategy's value and the choices behind it; None where a filter refuses them.

    Hypothesis' own loop begins every test with its simplest problem and derives later ones from
    earlier ones: here a value depends on the source alone.
    """
    data = ConjectureData(random=source, provider=Provider)
    try:
        with BuildContext(data, wrapped_test=generated):
            value = data.draw(strategy)
    except (StopTest, UnsatisfiedAssumption):
        return None
    data.freeze()
    return value, data.choices


def shelve(database: ExampleDatabase, key: bytes, choices: tuple[Any, ...]) -> None:
    """Has Hypothesis begin to shrink at these choices, as if they were shrunk already."""
    database.save(key + b".secondary", choices_to_bytes(choices))


def seed_test(function: Any, seed: int) -> None:
    """Fixes what a Hypothesis test generates.

    `hypothesis.seed` sets the same attribute, but also switches off the database in which a nightly
    run remembers failures.
    """
    function._hypothesis_internal_use_seed = seed  # noqa: SLF001


def has_settings(function: Any) -> bool:
    """Whether a Hypothesis test states its own settings."""
    return hasattr(function, "_hypothesis_internal_settings_applied")


def body_of(function: Any) -> Callable[..., None]:
    """The function that a test was written as."""
    return function.hypothesis.inner_test if hypothesis.is_hypothesis_test(function) else function


def marked_parameters(function: Any) -> dict[str, Any]:
    """The values of `pytest.mark.parametrize`, by the name of the argument."""
    return {
        mark.args[0]: mark.args[1]
        for mark in getattr(function, "pytestmark", ())
        if mark.name == "parametrize"
    }


def parameters_of(item: pytest.Item) -> dict[str, Any] | None:
    """What an item of pytest was collected with; None for one that takes nothing."""
    spec = getattr(item, "callspec", None)
    return None if spec is None else spec.params


def worker_of(report: pytest.TestReport) -> Any:
    """The node of pytest-xdist that a report came from."""
    return report.node  # pyright: ignore[reportAttributeAccessIssue]
