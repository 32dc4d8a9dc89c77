"""Which runs of the suites a matrix is made of, and which of them are left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

from kdaverify.kills.known_faults import KnownFault, catalogue_by, suites_by
from kdaverify.kills.pool import Job
from kdaverify.kills.rows import EVERY, ConformingRow, FaultRow

SMOKE = "smoke"


def chosen(pattern: str, impl: str = "") -> list[KnownFault]:
    """The faults whose id matches.

    Args:
        pattern: globs with commas between, such as H*,DESIGN-?.
        impl: an implementation of the operator whose faults are meant; "" for every operator.
    """
    return [
        fault
        for fault in catalogue_by(impl).faults.values()
        if any(fnmatchcase(fault.id, glob) for glob in pattern.split(","))
    ]


@dataclass(frozen=True)
class Plan:
    """What a run of the matrix tests.

    Args:
        profile: of faults that survive smoke.
        conforming: whether conforming kernels run through the whole suites.
        impl: an implementation of the operator whose faults they are; "" for shipped ones.
    """

    faults: tuple[KnownFault, ...]
    profile: str
    conforming: bool
    impl: str = ""

    @property
    def profiles(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((SMOKE, self.profile)))

    @property
    def right_kernels(self) -> tuple[str, ...]:
        """The kernels whose rejection is a false alarm."""
        return tuple(dict.fromkeys(name for fault in self.faults for name in fault.conforming))

    def jobs(self, done: Iterable[FaultRow | ConformingRow]) -> list[Job]:
        """What is left, longest first: conforming kernels, survivors, then every fault in smoke."""
        rows, ids = list(done), {fault.id for fault in self.faults}
        conforming = [*self._conforming()] if self.conforming else []
        then = [job for row in rows if row.id in ids for job in self.follow(row)]
        first = [Job(fault.id, SMOKE, weaker=True, impl=self.impl) for fault in self.faults]
        known = {
            (row.id, row.profile, row.suite if isinstance(row, ConformingRow) else EVERY)
            for row in rows
        }
        return [
            job
            for job in (*conforming, *then, *first)
            if (job.name, job.profile, job.suite) not in known
        ]

    def _conforming(self) -> Iterator[Job]:
        """Every suite of every conforming kernel that the faults are held against."""
        for suite in sorted({suite for found in self._suites.values() for suite in found}):
            for profile in reversed(self.profiles):
                yield from (
                    Job(name, profile, conforming=True, suite=suite)
                    for name, found in self._suites.items()
                    if suite in found
                )

    @cached_property
    def _suites(self) -> dict[str, list[str]]:
        """The suites of every conforming kernel."""
        return {name: suites_by(name) for name in self.right_kernels}

    def follow(self, row: FaultRow | ConformingRow) -> list[Job]:
        """What a row makes necessary: a fault that survives smoke runs under the last profile."""
        if isinstance(row, ConformingRow) or row.profile == self.profile or row.killed:
            return []
        return [Job(row.id, self.profile, impl=self.impl)]
