"""One session of `kdaverify verify`, in a process of its own: pytest on the suites, the terminal
summary, the decision as exit code.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest
from rich.console import Console
from rich.text import Text

import kdaverify
from kdaverify.cli.complaint import HARNESS, Complaint, complain, guarded
from kdaverify.cli.preflight import after_preflight
from kdaverify.cli.report import page_of
from kdaverify.cli.request import Request
from kdaverify.plugin.account import COMPLETE, cut_off
from kdaverify.plugin.session import decisions_of, judged_of, refused, session_of
from kdaverify.report.progress import LiveFailures, ProgressBar
from kdaverify.report.summary import summary, write_json
from kdaverify.report.terminal import show
from kdaverify.verdicts.cannot_run import CANNOT_RUN
from kdaverify.verdicts.decision import Decision, Ruling, heaviest

MOST_TRACEBACKS = 3


class _Listener:
    """Keeps the session's config, which pytest.main does not return."""

    config: pytest.Config | None = None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.config = session.config


def run(request: Request, console: Console) -> int:
    """Runs the session and returns the decision's exit code."""
    from kdaverify.adapters.registry import CannotImportError, find

    try:
        misuse = _misuse(request)
    except CannotImportError as error:
        complain(f"{CANNOT_RUN}: {error}")
        return Ruling.INSUFFICIENT.exit_code
    if misuse is not None:
        return complain(misuse)
    names = ", ".join(find(spec).name for spec in request.impls)
    console.print(Text(f"judging {names} with profile {request.profile}"))
    found = after_preflight(request)
    # What stops every call is the whole summary, and printed there alone.
    live = [LiveFailures(console)] if found is request else []
    config, ended = session(found, ProgressBar(console), *live)
    return HARNESS if config is None else _conclude(config, found, console, ended)


def _misuse(request: Request) -> str | None:
    """What is wrong with the request.

    Raises:
        CannotImportError: nothing is wrong, but an implementation imports what is not here.
    """
    from kdaverify.adapters.base import AdapterError
    from kdaverify.adapters.registry import CannotImportError, find
    from kdaverify.adapters.unconfigured import Unconfigured
    from kdaverify.plugin.suite_files import untestable
    from kdaverify.problems.profiles import check_profile

    try:
        check_profile(request.profile)
    except ValueError as error:
        return f"--{error}"
    for option, spec in [
        *(("impl", spec) for spec in request.impls),
        ("benchmark", request.benchmark),
    ]:
        try:
            adapter = None if spec is None else find(spec)
        except CannotImportError:
            raise
        except AdapterError as error:
            return f"--{option}: {error}"
        if isinstance(adapter, Unconfigured):
            return f"--{option}: {adapter.name}: {adapter.missing()}"
    judged = [find(spec) for spec in request.impls] if request.only else []
    wrong = (untestable(name, judged, request.profile) for name in request.only)
    return next((f"--only: {why}" for why in wrong if why), None)


def session(
    request: Request, *shown: ProgressBar | LiveFailures
) -> tuple[pytest.Config | None, int]:
    """Runs the suites; gives what pytest made of it, and how it ended.

    Args:
        shown: what is printed while they run.
    """
    listener = _Listener()
    arguments = request.pytest_arguments(
        kdaverify.suites_folder(), Path(__file__).with_name("suites.ini")
    )
    ended = pytest.main(arguments, plugins=[listener, *shown])
    return listener.config, ended


def _conclude(config: pytest.Config, request: Request, console: Console, ended: int) -> int:
    decisions = decisions_of(config)
    tracebacks = {
        trouble.message: trouble.traceback for trouble in reversed(session_of(config).trouble)
    }
    for message in list(dict.fromkeys(trouble.message for trouble in session_of(config).trouble))[
        :MOST_TRACEBACKS
    ]:
        console.print(Text(tracebacks[message], style="magenta"))
    show(
        console,
        decisions,
        record=request.record,
        standards=request.standards,
        judged=judged_of(config),
    )
    ruling = heaviest(decisions) if refused(config) else _ruling(decisions, ended, console)
    console.print(Text(f"decision: {ruling.upper()} (exit code {ruling.exit_code})", style="bold"))
    write_json(request.json_file, lambda: summary(ruling, decisions, session_of(config).account))
    if request.html is None:
        return ruling.exit_code
    return _page(request.html, ruling, config, request, console)


def _page(
    path: Path, ruling: Ruling, config: pytest.Config, request: Request, console: Console
) -> int:
    decisions = decisions_of(config)
    try:
        page_of(ruling, decisions, path, record=request.record, account=session_of(config).account)
    except Complaint as error:
        return complain(str(error))
    console.print(Text(f"page: {path}"), soft_wrap=True)
    return ruling.exit_code


def _ruling(decisions: list[Decision], ended: int, console: Console) -> Ruling:
    if ended in COMPLETE:
        return heaviest(decisions)
    console.print(Text(cut_off(ended), style="magenta"))
    return Ruling.ERROR


if __name__ == "__main__":
    # What ends it from outside ends it as Ctrl-C does: what was found is reported.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(guarded(lambda: run(Request.model_validate_json(sys.argv[1]), Console())))
