"""The session of a command in its own process: a kernel that ends it reruns isolated."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from importlib.util import cache_from_source, find_spec
from pathlib import Path
from typing import Final

from kdaverify.cli.complaint import as_complaint, complain
from kdaverify.cli.request import Request
from kdaverify.plugin.crashes import Crash, CrashFiles
from kdaverify.verdicts.record import RecordError, cut_back, lines_there
from oracles.file_cache import default_folder

SESSION: Final = ("-m", "kdaverify.cli.run")
"""What Python runs for a session."""
CONCLUDES: Final = 30.0
"""Seconds that a session has to report what it found when it is ended. Under `timeout` a port of 37
failing tests was killed without a word on any."""
_LEFT_OUT: Final = ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")


def judge_apart(request: Request) -> int:
    """Runs the session in a process of its own, and again for each kernel that ends it, from then
    on with that kernel isolated.

    The rows of a session that did not come to its end are dropped: the next one judges all of its
    cases.

    Raises:
        Complaint: the record has another ending than .jsonl or .parquet.
    """
    assert request.record is not None
    with as_complaint(RecordError, prefix="--"):
        before = lines_there(request.record)
    with tempfile.TemporaryDirectory(prefix="kdaverify-") as folder:
        files = CrashFiles(Path(folder))
        tested = request.model_copy(update={"crash_folder": files.folder})
        session = _SessionProcess()
        code = session.run(tested)
        while (
            (crash := files.left_by_session()) and not session.stopped and request.isolate is None
        ):
            # between two sessions
            again = f"judging again, {crash.spec} in a worker process"
            print(f"{crash}; {again}", flush=True)  # noqa: T201
            cut_back(request.record, before)
            files.isolate(crash)
            code = session.run(tested)
    return _concluded(code, crash, request)


def _concluded(code: int, crash: Crash | None, request: Request) -> int:
    """The exit code of a session that ended by itself;
    a complaint about one that its kernel ended, with whatever code.
    """
    if code in range(4) and crash is None:
        return code
    died = f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    names = ", ".join(request.impls)
    during = f" during {crash.test}" if crash else ""
    help_ = "without --no-isolate" if request.isolate is False else "with --isolate"
    return complain(
        f"the session judging {names} {died}{during}; its verdicts up to then are in"
        f" {request.record}; {help_} the session goes on"
    )


class _SessionProcess:
    """The process of a session.

    Args:
        stopped: whether this process received a signal to end, and has ended the session.
    """

    def __init__(self) -> None:
        self.stopped = False

    def run(self, request: Request) -> int:
        """The exit code, negative for a signal."""
        assert request.crash_folder is not None
        environment = environment_of_session()
        command = [sys.executable, *SESSION, request.model_dump_json()]
        with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL) as session:
            signal.signal(signal.SIGTERM, self._ending(session))
            try:
                return session.wait()
            except KeyboardInterrupt:
                # The terminal sends Ctrl-C to the session too: it closes its record and concludes.
                self.stopped = True
                return session.wait()

    def _ending(self, session: subprocess.Popen[bytes]) -> Callable[[int, object], None]:
        """The session closes its record and concludes, as on Ctrl-C, unless its kernel hangs."""

        def end(_signal: int, _frame: object) -> None:
            self.stopped = True
            session.terminate()
            last = threading.Timer(CONCLUDES, session.kill)
            last.daemon = True
            last.start()

        return end


def environment_of_session() -> dict[str, str]:
    """The environment of its processes."""
    own = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    # Hypothesis imports trio wherever that is installed, 0.3 s of every process.
    own["HYPOTHESIS_NO_PLUGINS"] = "1"
    if _stays_uncompiled("torch"):
        # Each process would compile torch for itself: 19.1 s of CPU time until two workers had
        # judged the conventions, 14.8 s where they share the folder, 8.9 s where it is there
        # already: it stays for the next session.
        own.pop("PYTHONDONTWRITEBYTECODE", None)
        own["PYTHONPYCACHEPREFIX"] = str(default_folder() / "bytecode")
    return own


def _stays_uncompiled(package: str) -> bool:
    """Whether a package has no bytecode that Python finds, and gets none by being imported."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return False
    cached = Path(cache_from_source(spec.origin))
    there = next(path for path in cached.parents if path.exists())
    return not cached.exists() and (sys.dont_write_bytecode or not os.access(there, os.W_OK))
