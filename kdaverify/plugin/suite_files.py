"""The files that suites lie in, and what each tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import kdaverify
from kdaverify.checks.property_table import named
from kdaverify.operator import DEFAULT, call_operator

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter


def property_of(suite: Path) -> str:
    """suites/kda/test_resume.py tests "resume"."""
    return suite.stem.removeprefix("test_")


def belongs(suite: Path, op: str) -> bool:
    """Whether a suite tests an operator: it lies in that one's folder, or in nobody's."""
    folders = {path.name for path in kdaverify.suites_folder().iterdir() if path.is_dir()}
    return suite.parent.name == call_operator(op).suites or suite.parent.name not in folders


def suite_files(op: str = DEFAULT) -> list[Path]:
    """The suites of an operator, by name."""
    return [
        path for path in sorted(kdaverify.suites_folder().rglob("test_*.py")) if belongs(path, op)
    ]


def shipped(op: str = DEFAULT) -> set[str]:
    """The property of every suite of an operator."""
    return {property_of(path) for path in suite_files(op)}


def untestable(name: str, adapters: Sequence[Adapter], profile: str) -> str | None:
    """Why no implementation can be tested on a suite: their operators have none of that name, or
    each of them declares not to have what it tests; None if one can.
    """
    with_suite = [adapter for adapter in adapters if name in shipped(adapter.op)]
    if not with_suite:
        ops = dict.fromkeys(adapter.op for adapter in adapters)
        there = "; ".join(f"the suites of {op} are {', '.join(_in_order(op))}" for op in ops)
        return f"no suite {name!r} of {', '.join(ops)}; {there}"
    reasons = {
        adapter.name: None
        if adapter.missing()
        else adapter.operator.not_applicable(adapter, profile).get(name)
        for adapter in with_suite
    }
    said = ", ".join(f"{one} ({why})" for one, why in reasons.items())
    return f"{name} is not tested of {said}" if all(reasons.values()) else None


def _in_order(op: str) -> tuple[str, ...]:
    suites = shipped(op)
    return named(lambda one: one.name in suites)
