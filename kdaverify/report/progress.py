"""Live progress of a session: tests, failures, time, and a line for the first failure of each kind;
pytest plugins fed by reports.
"""

from __future__ import annotations

import time
from typing import Any, Final

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kdaverify.report.plain import reported
from kdaverify.verdicts.verdict import Verdict

# Lines in a log that is no terminal: enough to see that it lives.
LOG_LINES = 4
MOST: Final = 12
"""Failures shown: the terminal summary reports later kinds, once it is known which are the same."""


class ProgressBar:
    """A bar on a terminal; a line now and then where there is none.

    Args:
        doing, done: what happens to the tests.
    """

    def __init__(self, console: Console, doing: str = "judging", done: str = "judged") -> None:
        self._console, self._said = console, done
        failing = TextColumn("{task.fields[failing]} failing")
        columns = (
            TextColumn(doing),
            BarColumn(),
            MofNCompleteColumn(),
            failing,
            TimeElapsedColumn(),
        )
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._bar.add_task(doing, total=None, failing=0)
        self._total, self._done = 0, 0
        self._failed: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._begin(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        self._begin(len(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        if report.when == "teardown":
            self._done += 1
            self._print()

    def pytest_sessionfinish(self) -> None:
        self._bar.stop()

    def _begin(self, total: int) -> None:
        """Every worker collects the same tests; the first to say how many starts the clock."""
        if not self._total and total:
            self._total = total
            self._bar.start()

    def _print(self) -> None:
        self._bar.update(
            self._task, total=self._total, completed=self._done, failing=len(self._failed)
        )
        if not self._console.is_terminal and self._done % max(1, self._total // LOG_LINES) == 0:
            self._console.print(
                f"{self._done} of {self._total} tests {self._said}, {len(self._failed)} failing",
                highlight=False,
            )


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
