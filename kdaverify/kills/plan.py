"""Which runs of the suites a matrix is made of, and which of them are left."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.fault import Fault
from kdaverify.faults.legal import LEGAL
from kdaverify.kills.pool import Job
from kdaverify.kills.rows import EVERY, FaultRow, LegalRow
from kdaverify.plugin.suite_files import shipped

SMOKE = "smoke"


def chosen(pattern: str) -> list[Fault]:
    """The faults whose id matches.

    Args:
        pattern: globs with commas between, such as H*,DESIGN-?.
    """
    return [
        fault
        for fault in FAULTS.values()
        if any(fnmatchcase(fault.id, glob) for glob in pattern.split(","))
    ]


@dataclass(frozen=True)
class Plan:
    """What is tested of a run of the matrix.

    Args:
        profile: of faults that survive smoke.
        legal: whether conforming kernels run through the whole suites.
    """

    faults: tuple[Fault, ...]
    profile: str
    legal: bool

    @property
    def profiles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((SMOKE, self.profile)))

    def jobs(self, done: Iterable[FaultRow | LegalRow]) -> list[Job]:
        """What is left, longest first: conforming kernels, a suite at a time, survivors under the
        last profile, every fault under smoke.
        """
        rows, ids = list(done), {fault.id for fault in self.faults}
        runs = (
            [(name, profile) for profile in reversed(self.profiles) for name in LEGAL]
            if self.legal
            else []
        )
        legal = [Job(*run, legal=True, suite=suite) for suite in sorted(shipped()) for run in runs]
        then = [job for row in rows if row.id in ids for job in self.follow(row)]
        first = [Job(fault.id, SMOKE, weaker=True) for fault in self.faults]
        known = {
            (row.id, row.profile, row.suite if isinstance(row, LegalRow) else EVERY) for row in rows
        }
        return [
            job
            for job in (*legal, *then, *first)
            if (job.name, job.profile, job.suite) not in known
        ]

    def follow(self, row: FaultRow | LegalRow) -> list[Job]:
        """What a row makes necessary: a fault that survives smoke runs under the last profile."""
        if isinstance(row, LegalRow) or row.profile == self.profile or row.killed:
            return []
        return [Job(row.id, self.profile)]
