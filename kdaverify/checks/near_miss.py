"""What became of a near miss."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kdaverify.checks.grade import Grade

NEAR: Final = 1.5
"""The largest fraction of a budget that is a near miss; what lies further off is no bad luck."""
SETTLED: Final = "another case is wrong for certain"
"""Why a near miss was not run again: the kernel is rejected without it."""


class RetestFinding(StrEnum):
    """What fresh seeds say of a near miss."""

    CONFIRMED = "confirmed"
    ACQUITTED = "acquitted"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Recheck:
    """What became of a near miss.

    Args:
        finding: confirmed, acquitted, or undecided, which leaves it a failure.
        seeds: fresh ones that were judged.
        over: of these, over budget.
        median: of their ratios; None where there are none.
        limit: lower limit of that median.
        grade: by the medians of the statistics.
        reason: why nothing was decided, or what was found beside figures.
    """

    finding: RetestFinding
    seeds: int = 0
    over: int = 0
    median: float | None = None
    limit: float | None = None
    grade: Grade | None = None
    reason: str = ""

    def __str__(self) -> str:
        figures = ""
        if self.median is not None and self.limit is not None:
            figures = f" at {self.seeds} fresh seeds: {self.over} over budget, median {self.median:.3g}, its lower limit {self.limit:.3g}"
        return f"near miss, {self.finding}{figures}{f'; {self.reason}' if self.reason else ''}"
