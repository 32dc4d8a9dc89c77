"""The order of tests: tier by tier, what stands on its own first, then what is derived from it, the
expensive ones of each before the others.

A bug of the forward fails in most suites. An engineer who watches the run is helped by the plain
call that fails, within seconds; in the order of file names, activations, causality and the covering
array came before it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import pytest

from kdaverify.checks.property_table import PROPERTIES, Tier
from kdaverify.internals import parameters_of
from kdaverify.operator import operator_of
from kdaverify.plugin.suite_files import property_of

FIXED: Final = ("named", "named_backward", "row")
"""Fixtures that hold a fixed problem, or a row of the covering array with one."""
_PLACES: Final = {name: place for place, name in enumerate(PROPERTIES)}


def in_order_of_evidence(items: list[pytest.Item]) -> list[pytest.Item]:
    """The tests in the order in which they are run, of equal ones that in which they were
    collected; tests of no kernel stay.
    """
    turns = _turns(items)
    judging = iter(
        sorted((item for item in items if judges(item)), key=lambda item: _place(item, turns))
    )
    return [next(judging) if judges(item) else item for item in items]


def judges(item: pytest.Item) -> bool:
    """Whether a test is one of an implementation: the fixture `kernel` gets it."""
    return "kernel" in (parameters_of(item) or {})


def _place(item: pytest.Item, turns: Mapping[str, int]) -> tuple[int, int, int, float]:
    name = property_of(item.path)
    place = _PLACES.get(name, len(_PLACES))
    return _tier(item, name), place, turns.get(item.nodeid, 0), _cost(item, name)


def _tier(item: pytest.Item, name: str) -> Tier:
    """Of the rule that a test is about, where it is about one; of an early problem; else of its
    property.
    """
    called = (parameters_of(item) or {}).get("called")
    if called is not None:
        return called.rule.tier
    if name not in PROPERTIES:
        return Tier.DERIVED
    tier, problem = PROPERTIES[name].tier, _fixed_problem(item)
    if tier == Tier.GRADIENTS and problem is not None and operator_of(problem).is_early(problem):
        return Tier.PLAIN
    return tier


def _turns(items: Iterable[pytest.Item]) -> dict[str, int]:
    """Of rows that share a compiled kernel, which one each is: the second waits until every other
    kernel is compiled, so that no two processes need the same one at the same time.
    """
    found, seen = dict[str, int](), Counter[tuple[object, ...]]()
    for item in items:
        chosen = parameters_of(item) or {}
        row, subject = chosen.get("row"), chosen.get("kernel")
        if row is not None and subject is not None and subject.adapter.compiled:
            kernel = (subject.spec, *row.kernel)
            found[item.nodeid], seen[kernel] = seen[kernel], seen[kernel] + 1
    return found


def _cost(item: pytest.Item, name: str) -> float:
    """Of a test's fixed problem, so that the smallest come first; 0 if it generates them.

    What comes last is run the other way round: a long test at the very end leaves all other
    processes without work.
    """
    problem = _fixed_problem(item)
    cost = 0.0 if problem is None else operator_of(problem).cost(problem)
    return cost if name in PROPERTIES and PROPERTIES[name].plain else -cost


def _fixed_problem(item: pytest.Item) -> Any:
    """The problem of a test that does not generate its own, else None."""
    chosen = ((parameters_of(item) or {}).get(fixture) for fixture in FIXED)
    return next((getattr(value, "problem", value) for value in chosen if value is not None), None)
