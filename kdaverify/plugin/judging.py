"""One test: its implementation and judge, and the verdicts that leave with its report."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kdaverify.checks.status import Status
from kdaverify.internals import parameters_of
from kdaverify.plugin.benchmark import benchmark_of
from kdaverify.plugin.collect import fix_draws, subject_of
from kdaverify.plugin.crashes import crash_files, present, unrepeated
from kdaverify.plugin.localising import localised
from kdaverify.plugin.options import Subject
from kdaverify.plugin.suite_files import property_of
from kdaverify.process import use_one_core
from kdaverify.verdicts.verdict import Verdict

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter
    from kdaverify.verdicts.judge import Judge

CONVENTIONS = "conventions"
_VERDICTS = pytest.StashKey[list[Verdict]]()
_REPORTED = pytest.StashKey[set[str]]()
_MISFITS = pytest.StashKey[dict[str, str | None]]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    subject = subject_of(item)
    if subject is None:
        return
    item.stash[_VERDICTS] = []
    if subject.missing is not None:
        _refuse(item, subject, subject.missing)
    fix_draws(item, item.config.option.kda_seed)
    subject = present(item.config, subject)
    misfit = None if property_of(item.path) == CONVENTIONS else _misfit(item.config, subject)
    if misfit is not None:
        _say_it_once(item, subject)
        _skip(item, subject, f"not scored: {misfit}")


@pytest.fixture
def kernel(request: pytest.FixtureRequest) -> Adapter:
    """The implementation under test."""
    use_one_core()
    return present(request.config, request.param).adapter


@pytest.fixture
def judge(request: pytest.FixtureRequest, kernel: Adapter) -> Judge:
    """Judges a problem on the property that the test's file is named for."""
    from kdaverify.verdicts.judge import Judge

    item = request.node
    subject, seed = subject_of(item), item.config.option.kda_seed
    assert subject is not None
    report, benchmark = item.stash[_VERDICTS].append, benchmark_of(item.config)
    published = not item.config.option.bare
    return Judge(
        kernel,
        report,
        property_of(item.path),
        spec=subject.spec,
        seed=seed,
        benchmark=benchmark,
        defers=True,
        published=published,
        fits=True,
    )


@pytest.fixture
def bounds(request: pytest.FixtureRequest, kernel: Adapter) -> Any:
    """Which problems this profile draws for the implementation."""
    return kernel.operator.bounds(
        kernel, parameters_of(request.node) or {}, request.config.option.profile
    )


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Re-tests borderline failures and localises rejections, during a test and after it."""
    subject = subject_of(item)
    try:
        result = yield
        if subject is not None:
            subject = present(item.config, subject)
            _settle(item, subject)
            _account_for_crash(item, subject)
    except BaseException as error:
        if subject is not None and _rejection(error) is not None:
            from kdaverify.verdicts.recheck import rechecked

            subject = present(item.config, subject)
            kept = rechecked(
                trim(item.stash[_VERDICTS]),
                subject.adapter,
                settled=is_wrong(item.config, subject.spec),
            )
            note_failures(item.config, subject.spec, kept)
            item.stash[_VERDICTS][:] = (
                kept
                if item.config.option.bare
                else localised(item.config, subject.spec, kept, subject.adapter)
            )
        raise
    return result


def _settle(item: pytest.Item, subject: Subject) -> None:
    """Decides what borderline failures there are, at fresh seeds.

    Raises:
        Rejected: one of them stays a failure.
    """
    verdicts = item.stash[_VERDICTS]
    if any(verdict.status.rejects for verdict in verdicts):
        from kdaverify.verdicts.judge import reject
        from kdaverify.verdicts.recheck import rechecked

        verdicts[:] = rechecked(
            verdicts, subject.adapter, settled=is_wrong(item.config, subject.spec)
        )
        reject(verdicts)


def _account_for_crash(item: pytest.Item, subject: Subject) -> None:
    """Counts a process that ended during this test, although none ended when it ran again.

    Raises:
        Rejected: it ended inside a call of the kernel.
        RuntimeError: nothing shows that.
    """
    crash = unrepeated(item, subject, item.stash[_VERDICTS])
    if crash is None:
        return
    said = f"{crash}; run again in a worker process, the test did not end that"
    if not crash.in_kernel:
        raise RuntimeError(said)
    from kdaverify.verdicts.judge import reject

    verdict = _blank(item, subject, Status.CRASH, f"{said}: the crash depends on what ran before")
    item.stash[_VERDICTS].append(verdict.model_copy(update={"output": "call"}))
    reject(item.stash[_VERDICTS])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[Any]:
    """Adds the verdicts to the report that closes the judging, which pytest-xdist transfers."""
    report: pytest.TestReport = yield
    subject = subject_of(item)
    if subject is None:
        return report
    rejection = None if call.excinfo is None else _rejection(call.excinfo.value)
    if rejection is not None:
        reported = [
            verdict.whereabouts() for verdict in item.stash[_VERDICTS] if verdict.status.rejects
        ]
        report.longrepr = "\n  ".join(filter(None, (rejection, *reported[-1:])))
    judged = report.when == "call" or (report.when == "setup" and not report.passed)
    verdicts = trim(item.stash.get(_VERDICTS, [])) if judged else ()
    report.kdaverify = {  # pyright: ignore[reportAttributeAccessIssue]
        "implementation": subject.adapter.name,
        "property": property_of(item.path),
        "verdicts": [verdict.model_dump_json() for verdict in verdicts],
        "broken": (
            ""
            if call.excinfo is None or rejection is not None or not report.failed
            else _in_short(call.excinfo.value)
        ),
    }
    return report


def _rejection(error: BaseException) -> str | None:
    """The message of a rejected kernel; None where anything else went wrong.

    Hypothesis wraps the rejection of a kernel that fails on the first call and not on the second.
    """
    from kdaverify.verdicts.judge import FatalRejection, Rejected

    if isinstance(error, Rejected | FatalRejection):
        return str(error)
    if isinstance(error, BaseExceptionGroup):
        messages = [_rejection(inner) for inner in error.exceptions]
        known = [message for message in messages if message is not None]
        if len(known) == len(messages):
            return "not repeatable: the same call failed once and passed once\n" + "\n".join(known)
        return None
    return None


def _in_short(error: BaseException) -> str:
    first = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first}"


def _misfit(config: pytest.Config, subject: Subject) -> str | None:
    """Which declared convention is wrong, found once a process; nothing else is scored then."""
    known = config.stash.setdefault(_MISFITS, {})
    if subject.spec not in known:
        known[subject.spec] = subject.adapter.operator.misfit(subject.adapter)
    return known[subject.spec]


def _say_it_once(item: pytest.Item, subject: Subject) -> None:
    """Rejects in the place of the suite of conventions, in a session that was started without it.

    Raises:
        Rejected: by the first test of the process.
    """
    reported = item.config.stash.setdefault(
        _REPORTED, {property_of(other.path) for other in item.session.items}
    )
    if CONVENTIONS in reported:
        return
    reported.add(CONVENTIONS)
    from kdaverify.verdicts.judge import Judge

    judge = Judge(
        subject.adapter,
        item.stash[_VERDICTS].append,
        CONVENTIONS,
        spec=subject.spec,
        seed=item.config.option.kda_seed,
    )
    judge.conventions()


def _refuse(item: pytest.Item, subject: Subject, reason: str) -> None:
    """Skips an item of an implementation that cannot run; ends the session if required."""
    if item.config.option.require_impl:
        said = f"{subject.adapter.name} is required, but {reason}"
    else:
        said = reason
    _skip(item, subject, said, property_name="available")


def _skip(item: pytest.Item, subject: Subject, reason: str, property_name: str = "") -> None:
    verdict = _blank(item, subject, Status.SKIP, reason)
    item.stash[_VERDICTS].append(
        verdict.model_copy(update={"property": property_name}) if property_name else verdict
    )
    pytest.skip(reason)


def _blank(item: pytest.Item, subject: Subject, status: Status, message: str = "") -> Verdict:
    """A row about a test as a whole."""
    chosen = parameters_of(item) or {}
    return Verdict(
        implementation=subject.adapter.name,
        property=property_of(item.path),
        dtype=str(chosen.get("dtype", "")),
        regime=str(chosen.get("gate", "")),
        case=item.name,
        status=status,
        message=message,
        seed=item.config.option.kda_seed,
    )


def trim(verdicts: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """Verdicts up to the first failing case, that case, and the last; no shrinking attempts."""
    calls = [tuple(group) for _, group in groupby(verdicts, key=lambda verdict: verdict.case_key())]
    failing = [
        number
        for number, call in enumerate(calls)
        if any(verdict.status.rejects for verdict in call)
    ]
    if not failing:
        return tuple(verdicts)
    first, last = failing[0], failing[-1]
    kept = [verdict for call in calls[: first + 1] for verdict in _once(call)]
    if calls[last][0].case_key() == calls[first][0].case_key():
        return tuple(kept)
    return (*kept, *_once(calls[last]))


def _once(call: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """One verdict an output for a case run again to confirm it; one that rejects, if any did."""
    kept: dict[str, Verdict] = {}
    for verdict in call:
        if verdict.output not in kept or verdict.status.rejects:
            kept[verdict.output] = verdict
    return tuple(kept.values())


_WRONG = pytest.StashKey[set[str]]()


def is_wrong(config: pytest.Config, spec: str) -> bool:
    """Whether a test of this implementation failed for certain: borderline failures need no re-test
    then.

    Known to all processes of a session that have a folder in common; else to each by itself.
    """
    mark = _mark(config, spec)
    return spec in config.stash.setdefault(_WRONG, set()) or (mark is not None and mark.exists())


def note_failures(config: pytest.Config, spec: str, verdicts: Sequence[Verdict]) -> None:
    """Keeps that one of the verdicts of a test is a failure for certain, if one is."""
    from kdaverify.verdicts.recheck import certain

    if is_wrong(config, spec) or not certain(verdicts):
        return
    config.stash[_WRONG].add(spec)
    mark = _mark(config, spec)
    if mark is not None:
        mark.touch()


def _mark(config: pytest.Config, spec: str) -> Path | None:
    files = crash_files(config)
    if files is None:
        return None
    return files.folder / f"wrong-{hashlib.sha256(spec.encode()).hexdigest()[:16]}"
