"""Which tests there are: every suite, for every implementation, format, gate regime and panel problem it asks for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

from kdaverify.plugin.options import Subject, subjects

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.problems import Problem

AXES = ("dtype", "double", "staged", "staged_backward", "activated", "variant", "lawful", "gate", "named", "probed", "drifting", "called")
# Of the problems that a profile draws for a test: laws are many, and each is asked in every format.
_LAW = 1 / 3
_USUAL = ("bf16", "fp32")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kernel" not in metafunc.fixturenames:
        return
    axes = [axis for axis in AXES if axis in metafunc.fixturenames]
    found = [case for subject in subjects(metafunc.config) for case in _cases(subject, axes, metafunc.config.option.profile)]
    metafunc.parametrize(("kernel", *axes), found, indirect=("kernel",))
    fixed = metafunc.config.option.bare or not all(subject.adapter.open_ended for subject in subjects(metafunc.config))
    _settle(metafunc.function, metafunc.config.option.profile, fixed=fixed, share=_LAW if "lawful" in axes else 1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps one item of an implementation that cannot run here, to say so; fixes the draws of all others, whatever their order."""
    kept, dropped, told = list[pytest.Item](), list[pytest.Item](), set[str]()
    for item in items:
        subject = subject_of(item)
        if subject is None:
            (dropped if _asks_nothing(item) else kept).append(item)
        elif subject.missing is None:
            # Warnings that a kernel raises are its own affair, even where ours are errors.
            item.add_marker(pytest.mark.filterwarnings("default"))
            kept.append(item)
        else:
            (dropped if subject.spec in told else kept).append(item)
            told.add(subject.spec)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def subject_of(item: pytest.Item) -> Subject | None:
    """The implementation an item judges; None for a test that judges none."""
    if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
        return None
    found = item.callspec.params.get("kernel")
    return found if isinstance(found, Subject) else None


def _asks_nothing(item: pytest.Item) -> bool:
    """Whether an item stands for an empty list of parameters: no implementation of the session has a variant."""
    return isinstance(item, pytest.Function) and "kernel" in item.fixturenames


def property_of(suite: Path) -> str:
    """suites/kda/test_resume.py asks for "resume"."""
    return suite.stem.removeprefix("test_")


def fix_draws(item: pytest.Item, seed: int) -> None:
    """Seeds Hypothesis for one item: the same problems for every implementation, in any order, on any worker."""
    assert isinstance(item, pytest.Function)
    if not hypothesis.is_hypothesis_test(item.obj):
        return
    chosen = sorted((name, str(value)) for name, value in item.callspec.params.items() if name != "kernel")
    text = f"{seed}:{item.path.stem}:{item.originalname}:{chosen}"
    # hypothesis.seed() sets the same attribute, but would also switch off the database in which a nightly run remembers failures.
    item.obj._hypothesis_internal_use_seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])  # noqa: SLF001


def _settle(function: Any, profile: str, *, fixed: bool, share: float) -> None:
    """Gives a Hypothesis test the settings of the profile, unless it states its own."""
    from kdaverify.problems.profiles import settings_for

    if hypothesis.is_hypothesis_test(function) and not hasattr(function, "_hypothesis_internal_settings_applied"):
        settings_for(profile, fixed=fixed, share=share)(function)


def _cases(subject: Subject, axes: list[str], profile: str) -> Iterator[Any]:
    """Every combination of the axes a test asks for, ids first the implementation, then the format."""
    found = [choices(subject.adapter, axis, profile) for axis in axes]
    for combination in product(*found):
        ids, values = [name for name, _ in combination], [value for _, value in combination]
        yield pytest.param(subject, *values, id="-".join((subject.adapter.name, *ids)))


def choices(adapter: Adapter, axis: str, profile: str) -> list[tuple[str, Any]]:
    """What an axis of the tests goes over for an implementation, each with its part of the test's id."""
    from kdaverify.checks.activations import activated
    from kdaverify.checks.calls import questions
    from kdaverify.checks.laws.registry import LAWS
    from kdaverify.checks.stages import staged
    from kdaverify.problems import panel
    from kdaverify.problems.probes import probes
    from kdaverify.problems.regimes import GATES

    pairs: dict[str, Callable[[], Iterable[tuple[str, Any]]]] = {
        "named": lambda: (
            (f"{dtype}-{entry.name}", fitted(adapter, entry.problem))
            for dtype in adapter.dtypes
            for entry in panel(dtype, profile, real_sizes=takes_real_sizes(adapter, dtype))
        ),
        "probed": lambda: (
            (f"{dtype}-{probe.name}", probe.of(fitted(adapter, probe.problem)))
            for dtype in adapter.dtypes
            for probe in probes(dtype, profile)
        ),
        "called": lambda: ((question.name, question) for question in questions(adapter, profile)),
        "drifting": lambda: drifting(adapter, profile),
        "lawful": lambda: ((f"{dtype}-{law}", (law, dtype)) for dtype in lawful_dtypes(adapter, profile) for law in LAWS),
        "activated": lambda: ((f"{op}-{dtype}", (op, dtype)) for op, dtype in activated(adapter)),
    }
    if axis in pairs:
        return list(pairs[axis]())
    names: dict[str, Callable[[], Iterable[str]]] = {
        "dtype": lambda: adapter.dtypes,
        "double": lambda: [dtype for dtype in adapter.dtypes if dtype == "fp64"],
        "staged": lambda: staged(adapter),
        "staged_backward": lambda: staged(adapter, backward=True),
        # Regimes without weight are named by probes alone.
        "gate": lambda: [name for name, regime in GATES.items() if regime.weight],
        "variant": adapter.variants,
    }
    return [(name, name) for name in names[axis]()]


def lawful_dtypes(adapter: Adapter, profile: str) -> tuple[str, ...]:
    """The formats that laws are asked in: in smoke the usual ones, where the implementation takes one of them."""
    usual = tuple(dtype for dtype in adapter.dtypes if dtype in _USUAL)
    return usual if usual and profile == "smoke" else adapter.dtypes


def drifting(adapter: Adapter, profile: str) -> list[tuple[str, Any]]:
    """The questions of drift that a profile asks of the implementation: how the tokens are fed, and the problem."""
    from kdaverify.problems.drift_probes import drift_cases

    return [
        (f"{dtype}-{case.name}", (case.way, fitted(adapter, case.problem(dtype))))
        for dtype in adapter.dtypes
        for case in drift_cases(profile, dtype, adapter.dtypes)
    ]


def fitted(adapter: Adapter, problem: Problem) -> Problem:
    """The problem at the nearest widths that the kernel was compiled for, where it does not take the problem's own."""
    if not adapter.widths or {problem.K, problem.V} <= {*adapter.widths} or adapter.supports(problem) is None:
        return problem
    K, V = (min(adapter.widths, key=lambda width: abs(width - wanted)) for wanted in (problem.K, problem.V))
    return problem.replace(K=K, V=V)


def takes_real_sizes(adapter: Adapter, dtype: str) -> bool:
    """Kernels on an accelerator, where the float64 oracle is sharp enough: balls of these sizes would take hours."""
    from kdaverify.budgets.standard import FLOAT64_ORACLE_PRECISION

    return adapter.device != "cpu" and adapter.contract(dtype).operands.precision <= FLOAT64_ORACLE_PRECISION
