"""The tests of the suites as data: every test of every suite, for every choice of its axes."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import hypothesis
from hypothesis import strategies as st

from kdaverify.checks.properties import is_of_gradients
from kdaverify.internals import body_of, marked_parameters
from kdaverify.operator import operator_of
from kdaverify.plugin.suite_files import property_of, suite_files

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.canonical import Canonical

GIVEN: Final = ("judge", "bounds", "data")
"""What every test may take beside its axes."""


class UnknownTestError(RuntimeError):
    """A suite holds a test that cannot run outside pytest; the message names it and why."""


@dataclass(frozen=True)
class PropertyTest:
    """One call of a judge.

    Args:
        property: what is tested.
        problem: as JSON; "" where the conventions are tested.
        detail: what the property chose beside the problem, as JSON.
    """

    property: str
    problem: str = ""
    detail: str = "{}"


CONVENTIONS: Final = PropertyTest("conventions")


@dataclass(frozen=True)
class _Notebook:
    """Stands in for a judge: records its calls."""

    adapter: Adapter
    property_name: str
    tested: list[PropertyTest] = field(default_factory=list[PropertyTest])

    def __call__(self, problem: Canonical, **detail: Any) -> None:
        tested = operator_of(problem).fitted(
            self.adapter, problem, backward=is_of_gradients(self.property_name, detail)
        )
        self.tested.append(
            PropertyTest(self.property_name, tested.to_json(), json.dumps(detail, sort_keys=True))
        )

    def conventions(self) -> None:
        self.tested.append(CONVENTIONS)


@dataclass(frozen=True)
class _Drawing:
    """Stands in for the `data` of Hypothesis."""

    draw: Callable[..., Any]


@dataclass(frozen=True)
class SuiteTest:
    """One test under one choice of its axes.

    Args:
        property: the suite's name.
        test: its function, as Hypothesis calls it.
        random: whether its cases are random; otherwise they are the same in every run.
        chosen: by axis.
        adapter: of whom.
        profile: decides how expensive a random problem may be.
    """

    property: str
    test: Callable[..., Any]
    random: bool
    chosen: Mapping[str, Any]
    adapter: Adapter
    profile: str

    def property_tests(self, data: Any = None) -> tuple[PropertyTest, ...]:
        """The calls of the judge by the test, given its source of random choices."""
        notebook = _Notebook(self.adapter, self.property)
        given: dict[str, Callable[[], Any]] = {
            "judge": lambda: notebook,
            "data": lambda: data,
            "bounds": lambda: self.adapter.operator.bounds(self.adapter, self.chosen, self.profile),
        }
        wanted = inspect.signature(self.test).parameters
        self.test(**{name: make() for name, make in given.items() if name in wanted}, **self.chosen)
        return tuple(notebook.tested)

    def strategy(self) -> st.SearchStrategy[tuple[PropertyTest, ...]]:
        """The test's cases, generated as in the suite, so that they shrink alike."""

        @st.composite
        def property_tests(draw: st.DrawFn) -> tuple[PropertyTest, ...]:
            return self.property_tests(_Drawing(draw))

        return property_tests()


def questions(adapter: Adapter, profile: str, *, random: bool) -> tuple[SuiteTest, ...]:
    """The random tests of the suites, or the fixed ones, in an order that depends on nothing else.

    Raises:
        UnknownTestError: a test takes more than a judge, bounds, data and axes.
    """
    not_applicable = adapter.operator.not_applicable(adapter, profile)
    return tuple(
        question
        for path in suite_files(adapter.op)
        if property_of(path) not in not_applicable
        for test in _tests(path)
        if hypothesis.is_hypothesis_test(test) == random
        for question in _of_test(adapter, profile, property_of(path), test)
    )


@cache
def _tests(path: Path) -> tuple[Callable[..., Any], ...]:
    """The functions that pytest would collect from a suite."""
    spec = importlib.util.spec_from_file_location(
        f"kdaverify_suite_{path.parent.name}_{path.stem}", path
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return tuple(
        found
        for name, found in vars(module).items()
        if name.startswith("test_") and callable(found)
    )


def _of_test(adapter: Adapter, profile: str, property_name: str, test: Any) -> Iterator[SuiteTest]:
    random, axes = hypothesis.is_hypothesis_test(test), adapter.operator.axes()
    body = body_of(test)
    wanted = [name for name in inspect.signature(body).parameters if name not in GIVEN]
    marked = marked_parameters(test)
    unknown = [name for name in wanted if name not in {*axes, *marked}]
    if unknown:
        raise UnknownTestError(
            f"suite {property_name}: {test.__name__} takes {', '.join(unknown)}; a campaign can"
            f" give it {', '.join((*GIVEN, *axes))} alone"
        )
    values: list[Sequence[Any]] = [
        marked[name] if name in marked else [value for _, value in axes[name](adapter, profile)]
        for name in wanted
    ]
    for combination in product(*values):
        yield SuiteTest(
            property_name,
            body,
            random,
            dict(zip(wanted, combination, strict=True)),
            adapter,
            profile,
        )
