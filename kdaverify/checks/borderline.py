"""What became of a borderline failure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from kdaverify.checks.status import Grade, Status

NEAR: Final = 1.5
"""The largest fraction of a tolerance that is a borderline failure; a larger error is not explained
by sampling variation: of 4,500 pairs of conforming kernels 0.4 % differed by more, in the largest
error of an element."""
CLEAR: Final = 2.0
"""Times the tolerance, at least, that no other seed brings below it: of the 4,500 pairs none
differed twofold. What is explained and shown begins with such failures."""
NUMERIC: Final = ("rms", "largest", "row", "median", "tail", "bias", "normalised")
"""The statistics that a seed moves; what is not finite, or no exact zero, is wrong at any seed."""
SETTLED: Final = "another case is wrong for certain"
"""Why a borderline failure was not run again: the kernel is rejected without it."""


def is_near(status: Status, statistic: str | None, ratio: float | None) -> bool:
    """Whether a failure is borderline: a numeric statistic at most NEAR times its tolerance."""
    return status is Status.FAIL and statistic in NUMERIC and ratio is not None and ratio <= NEAR


class RetestFinding(StrEnum):
    """The result of fresh seeds for a borderline failure."""

    CONFIRMED = "confirmed"
    PASSED_ON_RETEST = "acquitted"
    UNDECIDED = "undecided"


FOUND: Final = {
    RetestFinding.CONFIRMED: "failed again on re-test",
    RetestFinding.PASSED_ON_RETEST: "passed on re-test",
    RetestFinding.UNDECIDED: "not re-tested, so it fails",
}
"""In words; the values are those of records."""


@dataclass(frozen=True)
class Recheck:
    """What became of a borderline failure.

    Args:
        finding: `confirmed`, `acquitted` (passed on re-test) or `undecided` (stays a failure).
        seeds: fresh ones that were judged.
        over: of these, over tolerance.
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
            figures = (
                f" at {self.seeds} fresh seeds: {self.over} over tolerance, median"
                f" {self.median:.3g}x (lower limit {self.limit:.3g}x)"
            )
        return (
            f"borderline, {FOUND[self.finding]}{figures}{f'; {self.reason}' if self.reason else ''}"
        )
