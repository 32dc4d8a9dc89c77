"""The command-line options of a session, checked once."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kdaverify.foreign_warnings import foreign_warnings
from kdaverify.limits import DIAGNOSIS_DEFAULT, ISOLATE, NO_ISOLATE, Limits

if TYPE_CHECKING:
    from kdaverify.adapters.base import Adapter

DEFAULT_IMPL = "eager"
DEFAULT_PROFILE = "smoke"
FIXED_SEED = 0


@dataclass(frozen=True)
class Subject:
    """An implementation of this session.

    Args:
        spec: how the user named it.
        adapter: what that is; isolated, its kernel runs in a worker process.
        missing: why it cannot run here, or None.
    """

    spec: str
    adapter: Adapter
    missing: str | None


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kdaverify", "numerical verification of KDA kernels")
    _add_questions(group)
    _add_reports(group)
    _add_isolation(group)


def _add_questions(group: pytest.OptionGroup) -> None:
    """What is judged, and on which problems."""
    group.addoption(
        "--impl",
        action="append",
        metavar="NAME|FILE.py[:OBJECT]|PACKAGE.MODULE[:OBJECT]",
        help=(
            "implementation to judge, repeatable (default: eager); `kdaverify list impls` names the"
            " shipped ones"
        ),
    )
    group.addoption(
        "--profile", metavar="smoke|acceptance|nightly", help="how much is tested (default: smoke)"
    )
    group.addoption(
        "--device",
        metavar="DEVICE",
        help="refuse an implementation that would run on another device (cpu, cuda, npu, ...)",
    )
    group.addoption(
        "--kda-seed",
        type=_seed,
        metavar="N",
        help=f"seed of the random problems (default: {FIXED_SEED}; nightly: the date)",
    )
    group.addoption(
        "--benchmark",
        metavar="IMPL",
        help=(
            "implementation whose errors published standards compare with (default: an emulated"
            " baseline kernel)"
        ),
    )
    group.addoption(
        "--require-impl",
        action="store_true",
        help="an implementation that cannot run here ends in exit code 3, not in 0",
    )


def _add_reports(group: pytest.OptionGroup) -> None:
    """What is written, printed and found out about verdicts."""
    group.addoption(
        "--record",
        type=Path,
        metavar="PATH",
        help="append every verdict to this .jsonl or .parquet file",
    )
    group.addoption(
        "--diagnosis",
        type=float,
        metavar="SECONDS",
        help=(
            "for each implementation that is rejected, to name what is wrong with it; 0: none"
            f" (default: {DIAGNOSIS_DEFAULT})"
        ),
    )
    group.addoption(
        "--standards",
        action="store_true",
        help="one row for each published standard, where one line counts them otherwise",
    )
    group.addoption(
        "--bare",
        action="store_true",
        help="verdicts alone: nothing is minimised or localised, and no published rule is applied",
    )


def _add_isolation(group: pytest.OptionGroup) -> None:
    group.addoption("--isolate", action="store_true", default=None, help=ISOLATE)
    group.addoption("--no-isolate", action="store_false", dest="isolate", help=NO_ISOLATE)
    # Given by `kdaverify verify`, which reads there during which test its session ended.
    group.addoption("--crash-folder", type=Path, help=argparse.SUPPRESS)
    group.addoption(
        "--time-limit",
        type=float,
        default=Limits.seconds,
        metavar="SECONDS",
        help=f"of one call in a worker process (default: {Limits.seconds:g})",
    )
    group.addoption(
        "--memory-limit",
        type=float,
        default=Limits.gib,
        metavar="GIB",
        help=f"of a worker process (default: {Limits.gib:g})",
    )


def pytest_configure(config: pytest.Config) -> None:
    named = config.option.impl or config.option.profile
    config.option.profile = config.option.profile or DEFAULT_PROFILE
    if config.option.kda_seed is None:
        # Stored in the option itself, which is what the workers of pytest-xdist are given.
        config.option.kda_seed = default_seed(config.option.profile, datetime.now(UTC))
    if not hasattr(config.option, "tbstyle"):
        # Without pytest's terminal, as in `kdaverify verify`, nobody reads the source around a
        # failure; quoting it took a second of CPU in a session with ninety.
        config.option.tbstyle = "native"
    if named:
        subjects(config)
        _one_test_at_a_time(config)


def _one_test_at_a_time(config: pytest.Config) -> None:
    """Has the processes of pytest-xdist fetch a test each, in order, unless a number was given.

    By default each gets a stretch of them: what comes first waits, and at the end of an acceptance
    of FLA's kernels by 18 processes one of them had 145 s of tests left when the others had none.
    """
    if getattr(config.option, "maxschedchunk", 1) is None:
        config.option.maxschedchunk = 1


def pytest_report_header(config: pytest.Config) -> str:
    named = " ".join(specs(config))
    return (
        f"kdaverify: {named}, profile {config.option.profile}, --kda-seed {config.option.kda_seed}"
    )


def default_seed(profile: str, now: datetime) -> int:
    """The same problems in every run, but new ones every night."""
    return int(now.strftime("%Y%m%d")) if profile == "nightly" else FIXED_SEED


def specs(config: pytest.Config) -> tuple[str, ...]:
    """The implementations as the user named them, once each."""
    return tuple(dict.fromkeys(config.option.impl or (DEFAULT_IMPL,)))


_SUBJECTS = pytest.StashKey[tuple[Subject, ...]]()


def subjects(config: pytest.Config) -> tuple[Subject, ...]:
    """The implementations of this session, found once.

    Raises:
        pytest.UsageError: one cannot be found, two share a name, one runs on another device than
            requested, or no such profile.
    """
    if _SUBJECTS not in config.stash:
        _import_torch(specs(config))
        _check_profile(config.option.profile)
        limits = limits_of(config)
        found = tuple(_subject(spec, config, limits) for spec in specs(config))
        _check_names(found)
        config.stash[_SUBJECTS] = found
    return config.stash[_SUBJECTS]


def end_workers(config: pytest.Config) -> None:
    """Ends the worker processes of this session."""
    for subject in config.stash.get(_SUBJECTS, ()):
        subject.adapter.end()


def limits_of(config: pytest.Config) -> Limits:
    """What calls in worker processes may take.

    Raises:
        pytest.UsageError: a limit that means nothing.
    """
    try:
        return Limits(seconds=config.option.time_limit, gib=config.option.memory_limit)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def _subject(spec: str, config: pytest.Config, limits: Limits) -> Subject:
    from kdaverify.adapters.base import AdapterError
    from kdaverify.adapters.isolation import housed
    from kdaverify.adapters.placement import runs_elsewhere
    from kdaverify.adapters.registry import find

    device = config.option.device
    try:
        with foreign_warnings():
            adapter = housed(find(spec), spec, isolate=config.option.isolate, limits=limits)
            missing = adapter.missing()
            misplaced = None if device is None or missing else runs_elsewhere(adapter, device)
    except AdapterError as error:
        raise pytest.UsageError(f"--impl: {error}") from None
    if misplaced:
        raise pytest.UsageError(misplaced)
    return Subject(spec, adapter, missing)


def _import_torch(specs: Iterable[str]) -> None:
    """Imports torch without the folders of ports, which are on the path of pytest-xdist's workers.
    torch looks for `cuda.bindings`: a port called cuda.py was taken for it, and the session ended.
    """
    path = sys.path[:]
    own = {str(Path(spec.rpartition(".py")[0]).resolve().parent) for spec in specs if ".py" in spec}
    sys.path[:] = [folder for folder in path if folder not in own]
    with suppress(ImportError):  # found there alone
        importlib.import_module("torch")
    sys.path[:] = path


def _check_profile(profile: str) -> None:
    from kdaverify.problems.profiles import check_profile

    try:
        check_profile(profile)
    except ValueError as error:
        raise pytest.UsageError(f"--{error}") from None


def _check_names(found: tuple[Subject, ...]) -> None:
    by_name: dict[str, str] = {}
    for subject in found:
        other = by_name.setdefault(subject.adapter.name, subject.spec)
        if other != subject.spec:
            raise pytest.UsageError(
                f"--impl: {other} and {subject.spec} are both named {subject.adapter.name!r};"
                " rename one: records go by the name"
            )


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise ValueError(f"--kda-seed: wanted a whole number of at least 0, got {text!r}")
    return int(text)
