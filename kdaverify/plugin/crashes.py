"""Kernels that end a test's process: found by files it left, isolated from then on.

A kernel that runs in the process of its test may end that process: a segfault, an `abort`, an
`os._exit`. While such a test runs, its name lies in a file, and the stacks that the interpreter
writes as it dies go to a second one. Where both pytest-xdist and `kdaverify verify` find that file
after the end of a process, the test runs again, and all later ones of the kernel, in a worker
process: there the case gets its CRASH, with signal and stacks.
"""

from __future__ import annotations

import faulthandler
import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from kdaverify.internals import worker_of
from kdaverify.plugin.options import Subject, limits_of

if TYPE_CHECKING:
    from kdaverify.verdicts.verdict import Verdict

SESSION: Final = "session"
"""The process of pytest itself, beside the workers of pytest-xdist."""
_INPUT: Final = "kdaverify_crashes"


@dataclass(frozen=True)
class Crash:
    """A process that ended during a test.

    Args:
        spec: the implementation, as the user named it.
        test: node id.
        how: signal and innermost frames, as far as the process wrote them.
        in_kernel: whether it was inside a call of the kernel; False where it left no stacks.
    """

    spec: str
    test: str
    how: str = ""
    in_kernel: bool = False

    def __str__(self) -> str:
        return f"the process ended during {self.test}{self.how and f': {self.how}'}"


class CrashFiles:
    """What the processes of one session leave for each other in a folder."""

    def __init__(self, folder: Path, process: str = SESSION) -> None:
        self.folder, self._process = folder, process
        self._isolated = folder / "isolated.jsonl"
        self._stacks: FileIO | None = None

    def begin(self, spec: str, test: str) -> None:
        """A test begins whose kernel runs in this process."""
        if self._stacks is None:
            self._stacks = self._file("stacks").open("wb", buffering=0)
            # From pytest's own plugin, which writes them where nobody reads: a process has one
            # place for them.
            faulthandler.enable(self._stacks)
        self._file("running").write_text(json.dumps(asdict(Crash(spec, test))))

    def end(self) -> None:
        """The test has ended, and this process has not."""
        self._file("running").write_text("")

    def close(self) -> None:
        if self._stacks is not None:
            faulthandler.disable()
            self._stacks.close()
            self._stacks = None

    def left_by_session(self) -> Crash | None:
        """The same of the process of pytest itself."""
        return self.left_by(SESSION)

    def left_by(self, process: str) -> Crash | None:
        """The test during which a process ended; None where none ran."""
        running, stacks = self._file("running", process), self._file("stacks", process)
        text = running.read_text() if running.exists() else ""
        if not text:
            return None
        from kdaverify.adapters.isolation.stacks import death_in

        how, in_kernel = death_in(stacks.read_text(errors="replace") if stacks.exists() else "")
        return replace(Crash(**json.loads(text)), how=how, in_kernel=in_kernel)

    def isolate(self, crash: Crash) -> None:
        """Has all processes of the session isolate the kernel from their next test on."""
        with self._isolated.open("a") as lines:
            lines.write(json.dumps(asdict(crash)) + "\n")
        self._file("running").unlink(missing_ok=True)

    def crashes(self, spec: str) -> list[Crash]:
        """Those of an implementation."""
        if not self._isolated.exists():
            return []
        found = [Crash(**json.loads(line)) for line in self._isolated.read_text().splitlines()]
        return [crash for crash in found if crash.spec == spec]

    def _file(self, kind: str, process: str = "") -> Path:
        return self.folder / f"{process or self._process}.{kind}"


_FILES = pytest.StashKey[CrashFiles | None]()
_OWN_FOLDER = pytest.StashKey[Path]()
_ISOLATED = pytest.StashKey[dict[str, Subject]]()


def crash_files(config: pytest.Config) -> CrashFiles | None:
    """Those of this session; None where no process outlives this one to read them."""
    if _FILES not in config.stash:
        config.stash[_FILES] = _opened(config)
    return config.stash[_FILES]


def _opened(config: pytest.Config) -> CrashFiles | None:
    worker: dict[str, Any] | None = getattr(config, "workerinput", None)
    if worker is not None:
        return CrashFiles(Path(worker[_INPUT]), worker["workerid"]) if _INPUT in worker else None
    folder: Path | None = config.option.crash_folder
    if folder is None and getattr(config.option, "dist", "no") != "no":
        folder = config.stash[_OWN_FOLDER] = Path(tempfile.mkdtemp(prefix="kdaverify-"))
    return None if folder is None else CrashFiles(folder)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Gives a worker of pytest-xdist the folder."""
    files = crash_files(node.config)
    if files is not None:
        node.workerinput[_INPUT] = str(files.folder)


@pytest.hookimpl(optionalhook=True)
def pytest_handlecrashitem(crashitem: str, report: pytest.TestReport, sched: Any) -> None:
    """Has a test run again, isolated, whose worker of pytest-xdist ended with it."""
    node = worker_of(report)
    files = crash_files(node.config)
    crash = None if files is None else files.left_by(node.gateway.id)
    if (
        files is None
        or crash is None
        or crash.test != crashitem
        or node.config.option.isolate is False
    ):
        return
    files.isolate(crash)
    # No failure of the harness: what counts is the second run.
    report.outcome = "rerun"  # pyright: ignore[reportAttributeAccessIssue]
    sched.mark_test_pending(crashitem)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Keeps the name of the test in a file while it runs."""
    from kdaverify.plugin.collect import subject_of

    subject, files = subject_of(item), crash_files(item.config)
    if (
        subject is None
        or files is None
        or subject.missing is not None
        or present(item.config, subject).adapter.isolated
    ):
        return (yield)
    files.begin(subject.spec, item.nodeid)
    try:
        return (yield)
    finally:
        files.end()


def present(config: pytest.Config, subject: Subject) -> Subject:
    """The implementation as it runs by now: isolated once it ended a test's process."""
    files = crash_files(config)
    if files is None or subject.adapter.isolated or not files.crashes(subject.spec):
        return subject
    from kdaverify.adapters.isolation import Isolated

    known = config.stash.setdefault(_ISOLATED, {})
    if subject.spec not in known:
        known[subject.spec] = replace(
            subject, adapter=Isolated(subject.adapter, subject.spec, limits=limits_of(config))
        )
    return known[subject.spec]


def unrepeated(item: pytest.Item, subject: Subject, verdicts: list[Verdict]) -> Crash | None:
    """The crash of a test that ran again in a worker process, which it did not end."""
    files = crash_files(item.config)
    if files is None or any(verdict.status.takes_process for verdict in verdicts):
        return None
    return next((crash for crash in files.crashes(subject.spec) if crash.test == item.nodeid), None)


def end_crash_files(config: pytest.Config) -> None:
    """Ends worker processes that crashes started, and removes this session's folder."""
    for subject in config.stash.get(_ISOLATED, {}).values():
        subject.adapter.end()
    files = config.stash.get(_FILES, None)
    if files is not None:
        files.close()
    if _OWN_FOLDER in config.stash:
        shutil.rmtree(config.stash[_OWN_FOLDER], ignore_errors=True)
