"""Random problems depend on the seed alone, and failures still shrink and replay."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase

from kdaverify.internals import BACKEND
from kdaverify.problems import Problem, problems, settings_for

Drawing = Callable[..., list[Any]]

MIXED = st.tuples(st.integers(0, 10**9), st.integers(), st.floats(), st.text(), st.binary())


def _import_constants(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    numbers = ", ".join(str(7919 * index + sum(name.encode())) for index in range(400))
    (folder / f"{name}.py").write_text(
        f"NUMBERS = [{numbers}]\nFLOATS = [2.625, 1e77]\nTEXTS = ['planted', b'planted']\n"
    )
    monkeypatch.syspath_prepend(folder)
    importlib.import_module(name)


@pytest.mark.parametrize("strategy", [problems(), MIXED], ids=["problems", "primitives"])
def test_an_imported_module_changes_nothing(
    drawn: Drawing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, strategy: Any, request: Any
) -> None:
    before = repr(drawn(strategy, 400))
    _import_constants(tmp_path, monkeypatch, f"constants_for_{request.node.callspec.id}")
    assert repr(drawn(strategy, 400)) == before


def test_the_same_module_changes_what_the_usual_backend_draws(
    drawn: Drawing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = repr(drawn(MIXED, 400, backend="hypothesis"))
    _import_constants(tmp_path, monkeypatch, "constants_for_the_usual_backend")
    assert repr(drawn(MIXED, 400, backend="hypothesis")) != before


def test_bounded_integers_are_uniform(drawn: Drawing) -> None:
    values = drawn(st.integers(0, 10**6), 400)
    assert 70 < sum(value < 250_000 for value in values) < 140
    assert 70 < sum(value >= 750_000 for value in values) < 140


def test_two_seeds_draw_different_problems() -> None:
    def first(number: int) -> list[Problem]:
        seen: list[Problem] = []

        @seed(number)
        @settings_for("smoke")
        @given(problems())
        def collect(problem: Problem) -> None:
            seen.append(problem)

        collect()
        return seen

    assert first(1) == first(1)
    assert first(1)[1:] != first(2)[1:]


def test_a_failure_is_shrunk_and_then_replayed_first() -> None:
    tried: list[int] = []

    @settings(settings_for("nightly"), database=InMemoryExampleDatabase(), print_blob=False)
    @seed(0)
    @given(st.integers(0, 10**6))
    def fails_from_1000(value: int) -> None:
        tried.append(value)
        assert value < 1000

    for first in (0, 1000):
        tried.clear()
        with pytest.raises(AssertionError):
            fails_from_1000()
        assert tried[0] == first
        assert tried[-1] == 1000


def test_the_backend_is_registered_under_its_name() -> None:
    assert settings_for("smoke").backend == BACKEND
