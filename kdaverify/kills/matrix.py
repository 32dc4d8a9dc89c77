"""The whole matrix: what the rows of faults and of conforming kernels say together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kdaverify.kills.known_faults import KnownFault, catalogue_by
from kdaverify.kills.plan import SMOKE, Plan
from kdaverify.kills.rows import Attempt, ConformingRow, FaultRow, Kill


@dataclass(frozen=True)
class Found:
    """What became of one fault.

    Args:
        rows: under smoke and, where it survived that, under the profile.
        reason: why it survives, where it does and that is known.
    """

    fault: KnownFault
    rows: tuple[FaultRow, ...]
    reason: str = ""

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        return tuple(attempt for row in self.rows for attempt in row.attempts)

    @property
    def killer(self) -> Attempt | None:
        """The attempt at full strength that killed it."""
        return next(
            (attempt for attempt in self.attempts if attempt.strength == 1 and attempt.kill), None
        )

    @property
    def weakest(self) -> Attempt | None:
        """The smallest strength that was killed."""
        return min(
            (attempt for attempt in self.attempts if attempt.kill),
            key=lambda attempt: attempt.strength,
            default=None,
        )

    def reported(self) -> dict[str, Any]:
        """As data."""
        weakest = self.weakest if self.fault.graded else None
        about = {
            name: getattr(self.fault, name)
            for name in ("id", "stage", "kind", "title", "reference", "trigger", "outputs")
        }
        return {
            **about,
            "killed": self.killer is not None,
            "by": self.killer and self.killer.kill and self.killer.kill.plain(),
            "profile": (self.killer or self.attempts[-1]).profile,
            "cases": sum(attempt.cases for attempt in self.attempts if attempt.strength == 1),
            "seconds": round(sum(attempt.seconds for attempt in self.attempts), 1),
            "threshold": (
                None
                if weakest is None or weakest.kill is None
                else _threshold(weakest.strength, weakest.kill)
            ),
            "survives_at": [
                attempt.strength
                for attempt in self.attempts
                if attempt.strength < 1 and attempt.kill is None
            ],
            "why": "" if self.killer else self.reason,
            "dismissed": [why for attempt in self.attempts for why in attempt.dismissed],
            "trouble": [what for attempt in self.attempts for what in attempt.trouble],
        }


def _threshold(strength: float, kill: Kill) -> dict[str, Any]:
    found = kill.plain()
    return {"strength": strength, "ratio": found["ratio"], "over_family": found["over_family"]}


@dataclass(frozen=True)
class KillMatrix:
    """Every fault that was tested, and every conforming kernel.

    Args:
        unfinished: faults without a complete run.
        suites_left: of conforming kernels.
    """

    profile: str
    faults: tuple[Found, ...]
    conforming: tuple[ConformingRow, ...]
    unfinished: int
    suites_left: int

    @property
    def killed(self) -> int:
        return sum(found.killer is not None for found in self.faults)

    def under_smoke(self) -> int:
        """How many die under smoke."""
        return sum(
            found.killer is not None and found.killer.profile == SMOKE for found in self.faults
        )

    def reported(self) -> dict[str, Any]:
        """As data, for programs."""
        return {
            "profile": self.profile,
            "total": len(self.faults),
            "killed": self.killed,
            "killed_under_smoke": self.under_smoke(),
            "unfinished": self.unfinished,
            "legal_suites_unfinished": self.suites_left,
            "legal_runs": sum(row.runs for row in self.conforming),
            "false_alarms": sum(len(row.false_alarms) for row in self.conforming),
            "legal": [row.plain() for row in self.conforming],
            "faults": [found.reported() for found in self.faults],
        }


def matrix(plan: Plan, rows: Iterable[FaultRow | ConformingRow]) -> KillMatrix:
    """The rows put together; faults without a complete run are left out."""
    done, survivors = list(rows), catalogue_by(plan.impl).survivors
    faults = [row for row in done if isinstance(row, FaultRow)]
    found = [
        Found(
            fault, tuple(row for row in faults if row.id == fault.id), survivors.get(fault.id, "")
        )
        for fault in plan.faults
    ]
    whole = tuple(
        one for one in found if one.killer or plan.profile in {row.profile for row in one.rows}
    )
    conforming = [
        row for row in done if isinstance(row, ConformingRow) and row.profile in plan.profiles
    ]
    return KillMatrix(
        plan.profile,
        whole,
        tuple(_joined(conforming)),
        len(found) - len(whole),
        sum(job.conforming for job in plan.jobs(done)),
    )


def _joined(rows: Iterable[ConformingRow]) -> Iterator[ConformingRow]:
    """One row for all suites of a kernel under a profile."""
    runs = defaultdict[tuple[str, str], list[ConformingRow]](list)
    for row in rows:
        runs[row.id, row.profile].append(row)
    for (name, profile), parts in sorted(runs.items()):
        yield ConformingRow(
            id=name,
            profile=profile,
            runs=sum(part.runs for part in parts),
            seconds=round(sum(part.seconds for part in parts), 1),
            false_alarms=tuple(alarm for part in parts for alarm in part.false_alarms),
            trouble=tuple(what for part in parts for what in part.trouble),
        )
