"""The session in its reporting process: verdicts arrive, are recorded, and decide."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kdaverify.foreign_warnings import foreign_warnings
from kdaverify.limits import Limits, diagnosis_seconds
from kdaverify.plugin.account import COMPLETE, account, cut_off
from kdaverify.plugin.benchmark import benchmark_of, end_benchmark
from kdaverify.plugin.crashes import crash_files, end_crash_files, present
from kdaverify.plugin.expected import expected
from kdaverify.plugin.options import Subject, end_workers, limits_of, subjects
from kdaverify.process import use_one_core
from kdaverify.verdicts.cannot_run import cannot_run
from kdaverify.verdicts.code_identity import CodeIdentity, identity_of
from kdaverify.verdicts.decision import Decision, Ruling, decide
from kdaverify.verdicts.record import RecordError, RecordWriter
from kdaverify.verdicts.seal import Account, Expected
from kdaverify.verdicts.tally import tally
from kdaverify.verdicts.verdict import Verdict

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter

_SESSION = pytest.StashKey["Session"]()
_REFUSED = pytest.StashKey[bool]()


@dataclass(frozen=True)
class Trouble:
    """Something that went wrong in the harness.

    Args:
        implementation: the one being judged; "" where that is not known.
        test: node id.
        message: in one line.
        traceback: in full.
    """

    implementation: str
    test: str
    message: str
    traceback: str


@dataclass
class Session:
    """What has arrived so far.

    Args:
        writer: the record, if one is kept.
        rows: verdicts with their test and place in it, which orders them in the end.
        tested: properties tested of every implementation.
        trouble: what went wrong in the harness, in the order it did.
        judged: the code of every implementation, as it was when the session started.
        account: what the session says beside its verdicts; None before its end.
        failed: tests that failed.
        began: when the session did, on the monotonic clock.
    """

    writer: RecordWriter | None = None
    rows: list[tuple[str, int, Verdict]] = field(default_factory=list[tuple[str, int, Verdict]])
    tested: dict[str, set[str]] = field(default_factory=dict[str, set[str]])
    trouble: list[Trouble] = field(default_factory=list["Trouble"])
    judged: dict[str, CodeIdentity] = field(default_factory=dict[str, CodeIdentity])
    account: Account | None = None
    failed: int = 0
    began: float = field(default_factory=time.monotonic)

    def take(self, nodeid: str, part: dict[str, Any]) -> None:
        self.tested.setdefault(part["implementation"], set()).add(part["property"])
        for place, row in enumerate(part["verdicts"]):
            verdict = Verdict.model_validate_json(row)
            self.rows.append((nodeid, place, verdict))
            if self.writer is not None:
                self.writer.append(verdict)

    def ordered(self) -> list[Verdict]:
        """By test and place in it: the same for any number of workers and any order of tests."""
        return [verdict for _, _, verdict in sorted(self.rows, key=lambda row: row[:2])]

    def weighed(
        self, judged: Iterable[Subject], profile: str
    ) -> list[tuple[list[Verdict], Expected, list[str]]]:
        """What is decided, by implementation: verdicts, requirements, harness errors."""
        rows = self.ordered()
        own = {
            subject: [row for row in rows if row.implementation == subject.adapter.name]
            for subject in judged
        }
        return [
            (
                verdicts,
                expected(subject, self.tested.get(subject.adapter.name, set()), profile, verdicts),
                _reported(
                    [
                        trouble
                        for trouble in self.trouble
                        if trouble.implementation in ("", subject.adapter.name)
                    ]
                ),
            )
            for subject, verdicts in own.items()
        ]

    def decisions(self, judged: Iterable[Subject], profile: str) -> list[Decision]:
        return [
            decide(verdicts, wanted, trouble=trouble)
            for verdicts, wanted, trouble in self.weighed(judged, profile)
        ]


def diagnose(
    session: Session, judged: Iterable[Subject], *, seconds: float, limits: Limits
) -> None:
    """Groups the failures of every rejected implementation, and names what is wrong.

    Args:
        seconds: for each.
        limits: of a process with the same kernel, in which experiments run meanwhile.
    """
    for subject in judged:
        own = [row for row in session.ordered() if row.implementation == subject.adapter.name]
        if (
            seconds <= 0
            or cannot_run(tally(own))
            or subject.missing is not None
            or not any(row.status.localised and row.problem for row in own)
        ):
            continue
        from kdaverify.diagnosis.session import explained

        use_one_core()
        reported = explained(own, subject.adapter, seconds=seconds, second=_second(subject, limits))
        session.rows[:] = [
            (test, place, _with(row, subject.adapter.name, reported))
            for test, place, row in session.rows
        ]


def _second(subject: Subject, limits: Limits) -> Adapter | None:
    """The same kernel in a process of its own; None on a device, whose memory one process may fill,
    and of a kernel that is in another process already, which is started again where it ends.
    """
    if subject.adapter.device != "cpu" or subject.adapter.isolated:
        return None
    from kdaverify.adapters.isolation import Isolated

    return Isolated(subject.adapter, subject.spec, limits=limits)


def _with(
    row: Verdict,
    name: str,
    reported: Mapping[tuple[tuple[str, str, str, str], str], dict[str, str]],
) -> Verdict:
    """The row with what is known of its case, if it is of that implementation and rejects."""
    if row.implementation != name or not row.status.rejects:
        return row
    return row.model_copy(update=reported.get((row.case_key(), row.output), {}))


def session_of(config: pytest.Config) -> Session:
    return config.stash[_SESSION]


def decisions_of(config: pytest.Config) -> list[Decision]:
    return session_of(config).decisions(subjects(config), config.option.profile)


def judged_of(config: pytest.Config) -> Mapping[str, CodeIdentity]:
    """The code of every implementation, once the session has ended."""
    account = session_of(config).account
    return {} if account is None else account.judged


def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    path: Path | None = config.option.record
    benchmark_of(config)
    try:
        writer = None if path is None or _is_worker(config) else RecordWriter(path)
    except (RecordError, OSError) as error:
        raise pytest.UsageError(f"--record: {error}") from None
    # A session that names no implementation may be somebody else's, and imports nothing of ours.
    named = subjects(config) if config.option.impl and not _is_worker(config) else ()
    config.stash[_SESSION] = Session(
        writer, judged={subject.adapter.name: identity_of(subject.spec) for subject in named}
    )
    # Reports arrive through a hook that is given no config: one receiver per session has its own.
    config.pluginmanager.register(_Receiver(config.stash[_SESSION]), "kdaverify-receiver")


@dataclass(frozen=True, eq=False)
class _Receiver:
    session: Session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        part = getattr(report, "kdaverify", None)
        self.session.failed += report.failed
        if part is not None:
            self.session.take(report.nodeid, part)
        if report.failed and part is None:
            self.session.trouble.append(
                Trouble("", report.nodeid, _last_line(report.longreprtext), report.longreprtext)
            )
        elif report.failed and part is not None and part["broken"]:
            self.session.trouble.append(
                Trouble(part["implementation"], report.nodeid, part["broken"], report.longreprtext)
            )

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.session.trouble.append(
                Trouble("", report.nodeid, _last_line(report.longreprtext), report.longreprtext)
            )


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    found = session.config.stash.get(_SESSION, None)
    if found is not None and _stopped_as_wanted(session, found):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
    # A session in which no kernel was tested may be somebody else's: looking for the default
    # implementation would import torch, which takes longer than most such sessions.
    if (
        found is not None
        and found.tested
        and not _is_worker(session.config)
        and session.exitstatus in COMPLETE
    ):
        _diagnose(session.config, found)
    lacking = session.exitstatus in (
        pytest.ExitCode.OK,
        pytest.ExitCode.NO_TESTS_COLLECTED,
    ) and _lacks_required(session.config)
    if (
        found is not None
        and not _is_worker(session.config)
        and (found.tested or found.writer is not None)
    ):
        whole = lacking or session.exitstatus in COMPLETE
        found.trouble += _edited(found.judged)
        found.account = _account(
            session.config, found, "" if whole else cut_off(session.exitstatus)
        )
        if found.writer is not None:
            found.writer.settle(found.ordered(), found.account)
    if lacking:
        session.config.stash[_REFUSED] = True
        session.exitstatus = Ruling.INSUFFICIENT.exit_code


def _stopped_as_wanted(session: pytest.Session, found: Session) -> bool:
    """Whether --maxfail ended it: pytest-xdist calls that an interruption, which it is not, of a
    kernel that is rejected.
    """
    most: int = session.config.option.maxfail or 0
    return session.exitstatus == pytest.ExitCode.INTERRUPTED and 0 < most <= found.failed


def _diagnose(config: pytest.Config, found: Session) -> None:
    """Diagnoses each implementation; a kernel that ends the process is isolated at retry."""
    named = subjects(config)
    spent = (time.monotonic() - found.began) / max(1, len(named))
    given: float | None = config.option.diagnosis
    seconds = diagnosis_seconds(spent) if given is None else given
    for subject in (present(config, subject) for subject in named):
        files = None if subject.adapter.isolated else crash_files(config)
        if files is not None:
            files.begin(subject.spec, "the diagnosis")
        with foreign_warnings():
            diagnose(found, [subject], seconds=seconds, limits=limits_of(config))
        if files is not None:
            files.end()


def _edited(judged: Mapping[str, CodeIdentity]) -> list[Trouble]:
    """Files that changed while they were judged: it is open which code a verdict is of."""
    reported = {name: ", ".join(one.changed_since()) for name, one in judged.items()}
    return [
        Trouble(name, "", said := f"{files} changed while it was judged; judge it again", said)
        for name, files in reported.items()
        if files
    ]


def _account(config: pytest.Config, found: Session, cut_short: str) -> Account:
    weighed = found.weighed(subjects(config), config.option.profile)
    trouble = {wanted.implementation: reported for _, wanted, reported in weighed}
    unnamed = {
        subject.adapter.name: identity_of(subject.spec)
        for subject in subjects(config)
        if subject.adapter.name not in found.judged
    }
    judged = {**found.judged, **unnamed}
    return account(
        config, [wanted for _, wanted, _ in weighed], trouble, cut_short=cut_short, judged=judged
    )


def pytest_unconfigure(config: pytest.Config) -> None:
    end_workers(config)
    end_crash_files(config)
    end_benchmark(config)
    found = config.stash.get(_SESSION, None)
    if found is not None and found.writer is not None:
        found.writer.close()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> Iterator[None]:
    """Ours is the last word, after pytest's own list of what failed."""
    yield
    if session_of(config).tested:
        _last_page(terminalreporter, config)


def _last_page(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    from rich.console import Console

    from kdaverify.report.terminal import show

    page = StringIO()
    # the width has no public name
    writer = terminalreporter._tw  # pyright: ignore[reportPrivateUsage] # noqa: SLF001
    width, colour = writer.fullwidth, writer.hasmarkup
    console = Console(file=page, width=width, force_terminal=colour, no_color=not colour)
    show(
        console,
        decisions_of(config),
        record=config.option.record,
        standards=config.option.standards,
        judged=judged_of(config),
    )
    terminalreporter.write_line("")
    terminalreporter.write_line(page.getvalue().rstrip())


def refused(config: pytest.Config) -> bool:
    """Whether only a required implementation that cannot run is wrong: pytest ended with 3."""
    return config.stash.get(_REFUSED, False)


def _lacks_required(config: pytest.Config) -> bool:
    return config.option.require_impl and any(
        subject.missing is not None for subject in subjects(config)
    )


def _is_worker(config: pytest.Config) -> bool:
    return hasattr(config, "workerinput")


def _reported(troubles: Sequence[Trouble]) -> list[str]:
    """One sentence for every message, however many tests it struck."""
    tests: dict[str, list[str]] = {}
    for trouble in troubles:
        tests.setdefault(trouble.message, []).append(trouble.test)
    return [f"{message}{_in_tests(struck)}" for message, struck in tests.items()]


def _in_tests(struck: Sequence[str]) -> str:
    """Which tests; nothing of what belongs to none."""
    more = f" and {len(struck) - 1} more" if len(struck) > 1 else ""
    return f", in {struck[0]}{more}" if struck[0] else ""


def _last_line(longrepr: str) -> str:
    lines = [line.strip() for line in longrepr.splitlines() if line.strip()]
    marked = [line.removeprefix("E").strip() for line in lines if line.startswith("E ")]
    return (marked or lines or ["no message"])[-1]
