"""Experiments run in a second process with the same kernel. Where that is lost, nothing else is."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.isolation import Isolated
from kdaverify.adapters.registry import find
from kdaverify.diagnosis import beside as process
from kdaverify.diagnosis.beside import Beside
from kdaverify.diagnosis.session import explained
from kdaverify.limits import Limits
from tests.diagnosis.test_reproduced import Wrong, failing

# A limit alone: on a machine that others use too, 6 s were too few.
SECONDS = 30.0


class Here(Wrong):
    """The kernel of a second process, in this one."""

    def inside(self, function: Callable[[Adapter], Any]) -> Any:
        return function(self)


class Lost(Wrong):
    """A kernel that takes the second process with it."""

    def inside(self, function: Callable[[Adapter], Any]) -> Any:
        raise ConnectionError


def said(second: Adapter | None) -> tuple[bool, bool]:
    """Whether a diagnosis, and what the failure depends on, is named."""
    adapter = Wrong("packs")
    rows = [*failing(adapter, ("packing",))]
    found = explained(rows, adapter, seconds=SECONDS, second=second).values()
    return any("diagnosis" in one for one in found), any("contrast" in one for one in found)


def test_experiments_are_reported_wherever_they_run() -> None:
    assert said(None) == said(Here("packs")) == (True, True)


def test_a_second_process_that_is_lost_costs_its_experiments_alone() -> None:
    assert said(Lost("packs")) == (True, False)


def test_what_takes_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LATE", 0.05)
    with closing(Beside(Here())) as beside:
        assert beside.result(beside.begin(partial(_slow, seconds=0.3)), "late") == "late"


def test_it_is_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LATE", 60.0)
    second = Isolated(find("eager"), "eager", limits=Limits())
    with closing(Beside(second)) as beside:
        there = beside.result(beside.begin(_process), 0)
    assert there not in (0, os.getpid())


def _slow(adapter: Adapter, seconds: float) -> str:
    del adapter
    time.sleep(seconds)
    return "slow"


def _process(adapter: Adapter) -> int:
    del adapter
    return os.getpid()
