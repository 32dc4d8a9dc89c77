"""Judging every implementation that runs here, one after the other, resumed where it was cut."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import kdaverify
from kdaverify.adapters.registry import Listing, find
from kdaverify.survey.state import commit_file
from kdaverify.verdicts.decision import Ruling
from kdaverify.verdicts.record import RecordError, read

DESIGN: Final = "emulated:"
"""How the names of designs begin: they emulate arithmetic, and are no implementation."""
RECORDS: Final = "records"
NOT_REACHED: Final = "not reached; the same command continues"


@dataclass(frozen=True)
class SurveyPlan:
    """What is judged, and how.

    Args:
        implementations: names that run here.
        profile, seed: of every session.
        folder: of the survey; records lie in a folder of it.
        seconds: after which a session is ended; its verdicts up to then are kept.
        workers: processes of a session, "auto" for every core.
        minutes: after which no further session begins.
        commit: of this kdaverify, written beside each record; "" where it is not known.
    """

    implementations: tuple[str, ...]
    profile: str
    seed: int
    folder: Path
    seconds: float
    workers: str = "auto"
    minutes: float = math.inf
    commit: str = ""

    def record(self, name: str) -> Path:
        safe = name.replace(":", "_").replace("/", "_")
        return self.folder / RECORDS / f"{safe}.jsonl"


@dataclass(frozen=True)
class SurveyStep:
    """One implementation of a survey.

    Args:
        name: its name.
        outcome: the decision; what kept it from one otherwise.
        seconds: it took; 0 where a record of an earlier run was taken.
    """

    name: str
    outcome: str
    seconds: float


def runnable(
    listings: Iterable[Listing], only: tuple[str, ...] = ()
) -> tuple[tuple[str, ...], dict[str, str]]:
    """The implementations that run here, and of the others why they do not.

    Args:
        only: names to be judged, in this order; () for all.
    """
    chosen = [one for one in listings if not one.name.startswith(DESIGN)]
    if only:
        chosen = sorted(
            (one for one in chosen if one.name in only), key=lambda one: only.index(one.name)
        )
    here = tuple(one.name for one in chosen if one.missing is None)
    return here, {one.name: one.missing for one in chosen if one.missing is not None}


def survey(plan: SurveyPlan, reported: Callable[[int, SurveyStep], None]) -> None:
    """Judges what has no finished record yet, each in a process of its own.

    A run that was ended, by whatever, leaves finished records and at most one unfinished: the next
    run with the same folder judges the unfinished one again and takes the others as they are.

    Args:
        reported: receives the number of each step, from 1, and the step when it is done.
    """
    for left in (plan.folder / RECORDS).glob("running-*"):
        shutil.rmtree(left)
    begun = time.monotonic()
    for number, name in enumerate(plan.implementations, 1):
        path = plan.record(name)
        if is_finished(path, name, plan):
            reported(number, SurveyStep(name, "taken from its record", 0.0))
            continue
        if time.monotonic() - begun > 60 * plan.minutes:
            reported(number, SurveyStep(name, NOT_REACHED, 0.0))
            continue
        path.unlink(missing_ok=True)
        started = time.monotonic()
        reported(number, SurveyStep(name, _judge(plan, name, path), time.monotonic() - started))


def is_finished(path: Path, name: str, plan: SurveyPlan) -> bool:
    """Whether a record is sealed, of this harness, profile and seed, and of the same versions."""
    if not path.is_file():
        return False
    try:
        record = read(path)
    except RecordError:
        return False
    wanted = (kdaverify.__version__, plan.profile, plan.seed)
    sealed = [(one.harness, one.profile, one.seed) for one in record.accounts]
    if record.open_rows or record.truncated or sealed != [wanted]:
        return False
    here = find(name).environment()
    return all(
        here.get(package, version) == version
        for row in record.verdicts[:1]
        for package, version in row.versions.items()
    )


def _judge(plan: SurveyPlan, name: str, path: Path) -> str:
    """The decision. The record gets its name once its session has ended: a session that outlives a
    killed survey writes to a file that nobody reads.
    """
    running = path.parent / f"running-{os.getpid()}" / path.name
    running.parent.mkdir(parents=True, exist_ok=True)
    log = path.with_suffix(".txt")
    command = [
        *(sys.executable, "-m", "kdaverify", "verify", "--impl", name),
        *("--profile", plan.profile, "--kda-seed", str(plan.seed), "--workers", plan.workers),
        *("--record", str(running), "--diagnosis", "0"),
    ]
    with log.open("w", encoding="utf-8") as output:
        code = exit_code_of(command, plan.seconds, output)
    if running.is_file():
        running.replace(path)
        commit_file(path).write_text(f"{plan.commit}\n", encoding="utf-8")
    running.parent.rmdir()
    if code is None:
        return f"ended after {plan.seconds:g} s; its output is in {log}"
    found = next((ruling for ruling in Ruling if ruling.exit_code == code), None)
    return f"ended with code {code}; its output is in {log}" if found is None else found.value


def exit_code_of(command: list[str], seconds: float, output: IO[str] | None = None) -> int | None:
    """The exit code; None where the time was over. No process is left behind."""
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
    ) as session:
        try:
            return session.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if session.poll() is None:
                # `verify` passes it on to its workers, and closes the record.
                session.send_signal(signal.SIGTERM)
                session.wait()
