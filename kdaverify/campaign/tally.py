"""What a campaign has found so far, in a few numbers: millions of verdicts stay in the record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from kdaverify.campaign.kinds import FailureKind, KindKey, kind_of
from kdaverify.campaign.task import Key, key_of
from kdaverify.checks.status import Status
from kdaverify.verdicts.verdict import Verdict


@dataclass
class CampaignRow:
    """One implementation in one format.

    Args:
        cases, skipped, failing: cases judged, not taken, and with a verdict that rejects.
        worst: largest share of a tolerance.
    """

    cases: int = 0
    skipped: int = 0
    failing: int = 0
    worst: float = 0.0

    def take(self, case: Sequence[Verdict]) -> None:
        judged = any(verdict.status.judged for verdict in case)
        self.cases += judged
        self.skipped += not judged
        self.failing += any(verdict.status.rejects for verdict in case)
        self.worst = max(
            [self.worst, *(verdict.ratio for verdict in case if verdict.ratio is not None)]
        )


@dataclass
class CampaignCounts:
    """What has arrived.

    Args:
        wanted: cases in all.
        done: keys of the tasks that were answered.
        lines: by implementation and format.
        kinds: of failures.
        examples: a verdict by implementation, property and reason why not judged ("" if it was).
        trouble: what went wrong in the harness, by implementation.
    """

    wanted: int
    done: set[Key] = field(default_factory=set[Key])
    lines: dict[tuple[str, str], CampaignRow] = field(
        default_factory=dict[tuple[str, str], CampaignRow]
    )
    kinds: dict[KindKey, FailureKind] = field(default_factory=dict[KindKey, FailureKind])
    examples: dict[tuple[str, str, str], Verdict] = field(
        default_factory=dict[tuple[str, str, str], Verdict]
    )
    trouble: dict[str, list[str]] = field(default_factory=lambda: defaultdict[str, list[str]](list))

    def take(self, verdicts: Iterable[Verdict]) -> None:
        """Adds whole cases, each one's verdicts together."""
        for key, group in groupby(verdicts, key=key_of):
            case = list(group)
            self.done.add(key)
            self.lines.setdefault((case[0].implementation, case[0].dtype), CampaignRow()).take(case)
            for verdict in case:
                self._take(verdict)

    def _take(self, verdict: Verdict) -> None:
        why = "" if verdict.status.judged else verdict.headline()
        self.examples.setdefault((verdict.implementation, verdict.property, why), verdict)
        if verdict.status.rejects and verdict.status is not Status.ORACLE_UNCERTIFIED:
            self.kinds.setdefault(kind_of(verdict), FailureKind(verdict)).take(verdict)

    @property
    def failing(self) -> int:
        return sum(line.failing for line in self.lines.values())

    def ranked(self) -> list[FailureKind]:
        """The most frequent kind first."""
        return [
            self.kinds[key]
            for key in sorted(self.kinds, key=lambda key: (-self.kinds[key].verdicts, key))
        ]

    def join(self) -> None:
        """Makes one kind of those that a diagnosis names alike."""
        joined = dict[KindKey, FailureKind]()
        for key, kind in self.kinds.items():
            found = kind.named() or key
            joined[found] = joined[found].join(kind) if found in joined else kind
        self.kinds = joined

    def heard(self, implementation: str) -> list[Verdict]:
        """Examples of what came of every property."""
        return [
            verdict for (name, _, _), verdict in self.examples.items() if name == implementation
        ]

    def tested(self, implementation: str) -> set[str]:
        return {verdict.property for verdict in self.heard(implementation)}
