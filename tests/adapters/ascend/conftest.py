"""AscendC adapters over stand-ins, right ones and ones with a convention wrong."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from kdaverify.adapters import Adapter
from kdaverify.adapters.ascend.ascendc import ASCENDC

STANDINS = "tests.adapters.ascend.standins"
Plant = Callable[..., Adapter]
_KNOWN = {"mid": {"widths": "any"}}
"""What the signature of a stand-in does not say."""
_NUMBERS = itertools.count()


def over(module: str, **options: str) -> Adapter:
    """The adapter on a module that runs on the CPU."""
    return ASCENDC.configured({"module": module, "device": "cpu", **options})


def right(revision: str, **options: str) -> Adapter:
    """The adapter on the right stand-in of a revision."""
    return over(f"{STANDINS}.{revision}", **_KNOWN.get(revision, {}) | options)


@pytest.fixture
def plant() -> Iterator[Plant]:
    """The adapter on a stand-in of a revision, with some of its behaviour changed."""
    planted: list[str] = []

    def build(revision: str, *, options: dict[str, str] | None = None, **changes: Any) -> Adapter:
        standin = importlib.import_module(f"{STANDINS}.{revision}")
        return host(
            standin.operators(replace(standin.BEHAVIOUR, **changes)),
            **_KNOWN.get(revision, {}) | (options or {}),
        )

    def host(operators: dict[str, Any], **options: str) -> Adapter:
        name = f"kdaverify_planted_{next(_NUMBERS)}"
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(operators)
        sys.modules[name] = module
        planted.append(name)
        return over(name, **options)

    build.host = host  # pyright: ignore[reportFunctionMemberAccess]
    yield build
    for name in planted:
        del sys.modules[name]
