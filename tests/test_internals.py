"""Private parts of other libraries: touched in one module, and where that module expects them."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random as Source

import hypothesis
import pytest
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from kdaverify import internals

ROOT = Path(__file__).parents[1]
PRIVATE = re.compile(
    r"hypothesis\.(internal|control)\b|_hypothesis_internal|\.inner_test"
    r"|choices_to_bytes|\bcallspec\b|\.pytestmark|\breport\.node\b|\b_pytest\b"
)


@hypothesis.given(st.integers())
@hypothesis.settings(max_examples=1, database=None)
def own(number: int) -> None: ...


@hypothesis.given(st.integers())
def plain(number: int) -> None: ...


@pytest.mark.parametrize("size", [1, 2])
def marked(size: int) -> None: ...


def test_one_module_touches_them() -> None:
    folders = ("oracles", "kdaverify", "suites")
    found = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if PRIVATE.search(path.read_text())
    }
    assert found == {"kdaverify/internals.py"}, (
        "use what kdaverify/internals.py offers, or add it there"
    )


def test_a_value_depends_on_the_source_alone_and_a_filter_may_refuse_it() -> None:
    strategy = st.fixed_dictionaries({"a": st.integers(0, 999), "b": st.booleans()}).map(
        lambda found: (found["a"], found["b"])
    )
    assert internals.generated(strategy, Source(3)) == internals.generated(strategy, Source(3)), (
        "hypothesis: ConjectureData or BuildContext moved"
    )
    assert internals.generated(st.integers(0, 9).filter(lambda _: False), Source(3)) is None, (
        "hypothesis: a refused value is reported otherwise"
    )


def test_a_shelved_case_is_where_shrinking_begins() -> None:
    found = internals.generated(st.integers(0, 10**6), Source(5))
    assert found is not None
    value, choices = found
    database, tried = InMemoryExampleDatabase(), list[int]()
    internals.shelve(database, b"key", choices)
    phases = (hypothesis.Phase.reuse, hypothesis.Phase.shrink)
    tested = hypothesis.settings(database=database, phases=phases, backend=internals.BACKEND)
    hypothesis.find(
        st.integers(0, 10**6),
        lambda number: tried.append(number) is None and number == value,
        settings=tested,
        database_key=b"key",
    )
    assert tried[0] == value, "hypothesis: the second shelf of a database is called otherwise"


def test_a_test_says_how_it_was_written() -> None:
    assert internals.has_settings(own) and not internals.has_settings(plain), (
        "hypothesis: where settings are noted has moved"
    )
    body = plain.hypothesis.inner_test  # pyright: ignore[reportFunctionMemberAccess]
    assert internals.body_of(plain) is body and internals.body_of(marked) is marked
    assert internals.marked_parameters(marked) == {"size": [1, 2]}, (
        "pytest: marks are kept otherwise"
    )


def test_a_seed_decides_what_a_test_generates() -> None:
    def drawn(seed: int) -> list[int]:
        seen = list[int]()

        @hypothesis.given(st.integers(0, 10**9))
        @hypothesis.settings(
            max_examples=5, database=None, derandomize=False, backend=internals.BACKEND
        )
        def noted(number: int) -> None:
            seen.append(number)

        internals.seed_test(noted, seed)
        noted()
        return seen

    assert drawn(1) == drawn(1) != drawn(2), "hypothesis: the attribute of a test's seed has moved"


def test_no_source_is_searched_for_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = list[object]()

    def search(module: object) -> Constants:
        searched.append(module)
        return Constants()

    monkeypatch.setattr(providers, "constants_from_module", search)
    for spared in (False, True):
        searched.clear()
        monkeypatch.setattr(providers, "_seen_modules", set[int]())
        monkeypatch.setattr(providers, "_sys_modules_len", 0)
        if spared:
            internals.without_constants()
        providers._get_local_constants()  # pyright: ignore[reportPrivateUsage]
        assert bool(searched) is not spared, "hypothesis: what it notes of modules has moved"


@pytest.mark.parametrize("size", [4])
def test_an_item_says_what_it_was_collected_with(request: pytest.FixtureRequest, size: int) -> None:
    assert internals.parameters_of(request.node) == {"size": size}, "pytest: callspec has moved"
