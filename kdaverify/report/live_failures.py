"""Failures as they come: a line for the first of each kind; a pytest plugin of its own."""

from __future__ import annotations

import time
from typing import Final

import pytest
from rich.console import Console

from kdaverify.report.plain import reported
from kdaverify.verdicts.verdict import Verdict

MOST: Final = 12
"""Lines: the terminal summary reports later kinds of failure, once it is known which of them are
the same."""


class LiveFailures:
    """Prints the first failing verdict of each property and status."""

    def __init__(self, console: Console) -> None:
        self._console, self._started = console, time.monotonic()
        self._seen: set[tuple[str, str, str]] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        part = getattr(report, "kdaverify", None)
        rows = (
            [] if part is None else [Verdict.model_validate_json(row) for row in part["verdicts"]]
        )
        for verdict in rows:
            kind = verdict.implementation, verdict.property, verdict.status.value
            if verdict.status.rejects and kind not in self._seen and len(self._seen) < MOST:
                self._seen.add(kind)
                self._show(verdict)

    def _show(self, verdict: Verdict) -> None:
        seconds = time.monotonic() - self._started
        line = (
            f"{seconds:4.0f} s  {verdict.implementation}: {verdict.property} {verdict.status} "
            f" {verdict.headline().removeprefix(f'{verdict.property}: ')}"
        )
        self._console.print(reported(line, "red"), soft_wrap=True, highlight=False)
