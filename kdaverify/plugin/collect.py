"""Which tests there are: every suite, for every implementation, format, gate regime and panel
problem that it is parametrized over.
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator
from itertools import product
from typing import Any

import hypothesis
import pytest

from kdaverify.internals import has_settings, parameters_of, seed_test, without_constants
from kdaverify.plugin.evidence_order import in_order_of_evidence
from kdaverify.plugin.options import Subject, subjects
from kdaverify.plugin.suite_files import belongs, property_of

# Of the problems that a profile draws for a test: laws are many, each tested in every format.
_LAW = 1 / 3


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kernel" not in metafunc.fixturenames:
        return
    profile, suite = metafunc.config.option.profile, metafunc.definition.path
    tested = [
        subject for subject in subjects(metafunc.config) if belongs(suite, subject.adapter.op)
    ]
    known = dict.fromkeys(axis for subject in tested for axis in subject.adapter.operator.axes())
    axes = [axis for axis in known if axis in metafunc.fixturenames]
    found = [
        case
        for subject in tested
        if _applies(property_of(suite), subject, profile)
        for case in _cases(subject, axes, profile)
    ]
    metafunc.parametrize(("kernel", *axes), found, indirect=("kernel",))
    fixed = metafunc.config.option.bare or not all(
        subject.adapter.open_ended for subject in subjects(metafunc.config)
    )
    _settle(
        metafunc.function,
        metafunc.config.option.profile,
        fixed=fixed,
        share=_LAW if "lawful" in axes else 1,
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps one item of an implementation that cannot run; orders tests by evidence."""
    kept, dropped, reported = list[pytest.Item](), list[pytest.Item](), set[str]()
    for item in items:
        subject = subject_of(item)
        if subject is None:
            (dropped if _has_no_case(item) else kept).append(item)
        elif subject.missing is None:
            # Warnings that a kernel raises are its own affair, even where ours are errors.
            item.add_marker(pytest.mark.filterwarnings("default"))
            kept.append(item)
        else:
            (dropped if subject.spec in reported else kept).append(item)
            reported.add(subject.spec)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
    items[:] = in_order_of_evidence(kept)
    if items and all(subject_of(item) is not None for item in items):
        # Before Hypothesis' own hook, which would search now.
        without_constants()


def pytest_collection_finish(session: pytest.Session) -> None:
    """Leaves what there is by now out of later garbage collections: modules of torch and pytest
    stay to the end, and a full collection takes 60 ms to walk their 130,000 objects.
    """
    if any(subject_of(item) is not None for item in session.items):
        gc.freeze()


def subject_of(item: pytest.Item) -> Subject | None:
    """The implementation an item judges; None for a test that judges none."""
    found = (parameters_of(item) or {}).get("kernel")
    return found if isinstance(found, Subject) else None


def _has_no_case(item: pytest.Item) -> bool:
    """Whether an item stands for no parameters: no implementation has a variant."""
    return isinstance(item, pytest.Function) and "kernel" in item.fixturenames


def fix_draws(item: pytest.Item, seed: int) -> None:
    """Seeds Hypothesis for one item: the same problems for every implementation and order."""
    assert isinstance(item, pytest.Function)
    if not hypothesis.is_hypothesis_test(item.obj):
        return
    chosen = sorted(
        (name, str(value))
        for name, value in (parameters_of(item) or {}).items()
        if name != "kernel"
    )
    text = f"{seed}:{item.path.stem}:{item.originalname}:{chosen}"
    seed_test(item.obj, int.from_bytes(hashlib.sha256(text.encode()).digest()[:8]))


def _settle(function: Any, profile: str, *, fixed: bool, share: float) -> None:
    """Gives a Hypothesis test the settings of the profile, unless it states its own."""
    from kdaverify.problems.profiles import settings_for

    if hypothesis.is_hypothesis_test(function) and not has_settings(function):
        settings_for(profile, fixed=fixed, share=share)(function)


def _applies(case_tested: str, subject: Subject, profile: str) -> bool:
    """Whether the implementation has a property; one that cannot run keeps one test."""
    return (
        subject.missing is not None
        or case_tested not in subject.adapter.operator.not_applicable(subject.adapter, profile)
    )


def _cases(subject: Subject, axes: list[str], profile: str) -> Iterator[Any]:
    """Every combination of the axes of a test, ids first the implementation, then the format."""
    choices = subject.adapter.operator.axes()
    for combination in product(*(choices[axis](subject.adapter, profile) for axis in axes)):
        ids, values = [name for name, _ in combination], [value for _, value in combination]
        yield pytest.param(subject, *values, id="-".join((subject.adapter.name, *ids)))
