"""Live progress of a session: tests done, failures, time; a pytest plugin of its own, fed by reports from any number of workers."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn


class ProgressBar:
    """A bar on a terminal; nothing where there is none."""

    def __init__(self, console: Console) -> None:
        columns = (
            TextColumn("judging"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[failed]} failing"),
            TimeElapsedColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task: TaskID | None = None
        self._failed: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._begin(len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        del node
        self._begin(len(ids))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        if self._task is not None:
            self._progress.update(self._task, advance=int(report.when == "teardown"), failed=len(self._failed))

    def pytest_sessionfinish(self) -> None:
        self._progress.stop()

    def _begin(self, total: int) -> None:
        if self._task is None:
            self._task = self._progress.add_task("judging", total=total, failed=0)
            self._progress.start()
