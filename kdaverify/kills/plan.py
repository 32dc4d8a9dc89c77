"""Which runs of the suites a matrix is made of, and which of them are left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from kdaverify.faults.catalogue import FAULTS
from kdaverify.faults.fault import Fault
from kdaverify.faults.hosts import host_of
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
        legal = [*self._legal()] if self.legal else []
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

    def _legal(self) -> Iterator[Job]:
        """Every suite of every conforming kernel of the operators that there are faults of."""
        hosts = dict.fromkeys(host_of(fault) for fault in self.faults)
        suites = {host: sorted(shipped(host.op)) for host in hosts}
        for suite in sorted({suite for of in suites.values() for suite in of}):
            for profile in reversed(self.profiles):
                yield from (
                    Job(name, profile, legal=True, suite=suite)
                    for host in hosts
                    if suite in suites[host]
                    for name in host.legal
                )

    def follow(self, row: FaultRow | LegalRow) -> list[Job]:
        """What a row makes necessary: a fault that survives smoke runs under the last profile."""
        if isinstance(row, LegalRow) or row.profile == self.profile or row.killed:
            return []
        return [Job(row.id, self.profile)]
