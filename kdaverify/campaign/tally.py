"""What a campaign has found so far, in a few numbers: millions of verdicts stay in the record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from kdaverify.campaign.kinds import Kind, KindKey, kind_of
from kdaverify.campaign.task import Key, key_of
from kdaverify.checks.status import Status
from kdaverify.verdicts.decision import Ruling
from kdaverify.verdicts.verdict import Verdict


@dataclass
class Line:
    """One implementation in one format.

    Args:
        cases, skipped, failing: cases judged, not taken, and with a verdict that rejects.
        proving: verdicts that are evidence for the implementation.
        worst: largest share of a budget.
    """

    cases: int = 0
    skipped: int = 0
    failing: int = 0
    proving: int = 0
    worst: float = 0.0

    def take(self, case: Sequence[Verdict]) -> None:
        judged = any(verdict.status.judged for verdict in case)
        self.cases += judged
        self.skipped += not judged
        self.failing += any(verdict.status.rejects for verdict in case)
        self.proving += sum(verdict.proves() for verdict in case)
        self.worst = max([self.worst, *(verdict.ratio for verdict in case if verdict.ratio is not None)])


@dataclass
class Tally:
    """What has arrived.

    Args:
        wanted: cases in all.
        done: keys of the tasks that were answered.
        lines: by implementation and format.
        kinds: of failures.
        uncertified: verdicts without a sharp enough reference value.
        trouble: what went wrong in the harness.
    """

    wanted: int
    done: set[Key] = field(default_factory=set[Key])
    lines: dict[tuple[str, str], Line] = field(default_factory=dict[tuple[str, str], Line])
    kinds: dict[KindKey, Kind] = field(default_factory=dict[KindKey, Kind])
    uncertified: int = 0
    trouble: list[str] = field(default_factory=list[str])

    def take(self, verdicts: Iterable[Verdict]) -> None:
        """Adds whole cases, each one's verdicts together."""
        for key, group in groupby(verdicts, key=key_of):
            case = list(group)
            self.done.add(key)
            self.lines.setdefault((case[0].implementation, case[0].dtype), Line()).take(case)
            for verdict in case:
                self._take(verdict)

    def _take(self, verdict: Verdict) -> None:
        if verdict.status is Status.ORACLE_UNCERTIFIED:
            self.uncertified += 1
        elif verdict.status.rejects:
            self.kinds.setdefault(kind_of(verdict), Kind(verdict)).take(verdict)

    @property
    def failing(self) -> int:
        return sum(line.failing for line in self.lines.values())

    def ranked(self) -> list[Kind]:
        """The most frequent kind first."""
        return [self.kinds[key] for key in sorted(self.kinds, key=lambda key: (-self.kinds[key].verdicts, key))]

    def gaps(self, implementations: Iterable[str]) -> list[str]:
        """What is missing before nothing rejected means anything."""
        missing = self.wanted - len(self.done)
        gaps = [f"{missing} of {self.wanted} cases were not asked"] if missing > 0 else []
        gaps += [f"{self.uncertified} verdicts without a certified reference value"] if self.uncertified else []
        proving = {name for (name, _), line in self.lines.items() if line.proving}
        return gaps + [f"nothing passed for {name}" for name in implementations if name not in proving]

    def ruling(self, implementations: Iterable[str]) -> Ruling:
        if self.trouble:
            return Ruling.ERROR
        if self.kinds:
            return Ruling.REJECT
        return Ruling.INSUFFICIENT if self.gaps(implementations) else Ruling.ACCEPT
