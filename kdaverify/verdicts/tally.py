"""What a decision needs of verdicts: how many of which kind, each counted once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from kdaverify.checks.status import Status
from kdaverify.verdicts.columns import polars
from kdaverify.verdicts.paired import Paired, PairedSample, paired
from kdaverify.verdicts.verdict import Verdict

if TYPE_CHECKING:
    import polars as pl

MOST_UNANSWERED: Final = 3
"""Examples that a reason gives."""
CASE: Final = ("property", "dtype", "case", "detail")
"""What was tested, whatever came of it: rows that agree in it are the outputs of one case."""


class VerdictKind(NamedTuple):
    """Verdicts that are alike to a decision."""

    property: str
    op: str
    dtype: str
    regime: str
    output: str
    status: str
    vacuous: bool

    def rejects(self) -> bool:
        return Status(self.status).rejects

    def proves(self) -> bool:
        """Whether it is evidence: a pass that no negative control would get."""
        return self.status == Status.PASS and not self.vacuous


@dataclass(frozen=True)
class VerdictCounts:
    """The verdicts on one implementation, counted.

    Args:
        kinds: how many of each there are; the same verdict found twice counts once.
        cases: by status, how many cases have an output of it.
        judged: cases of which anything was judged.
        unanswered: the first headlines of calls without outputs.
        errors: what the kernel raised, each headline once, in order.
        skipped: why cases were skipped, each reason once, in order.
        runs: the run as a whole, beside the conforming kernels.
    """

    kinds: Mapping[VerdictKind, int]
    cases: Mapping[str, int]
    judged: int
    unanswered: tuple[str, ...]
    errors: tuple[str, ...]
    skipped: tuple[str, ...]
    runs: tuple[Paired, ...]

    def count(self, status: Status) -> int:
        return sum(times for kind, times in self.kinds.items() if kind.status == status)


def tally(verdicts: Sequence[Verdict]) -> VerdictCounts:
    """Counts verdicts."""
    seen = {(_kind(verdict), verdict.case, detail_of(verdict)) for verdict in verdicts}
    cases = {(verdict.case_key(), verdict.status) for verdict in verdicts}
    unanswered = [verdict.headline() for verdict in verdicts if verdict.status is Status.UNANSWERED]
    return VerdictCounts(
        Counter(kind for kind, _, _ in seen),
        Counter(status.value for _, status in cases),
        len({tested for tested, status in cases if status.judged}),
        tuple(unanswered[:MOST_UNANSWERED]),
        _headlines(verdicts, Status.ERROR),
        _headlines(verdicts, Status.SKIP),
        paired(verdicts),
    )


def tally_of(rows: pl.DataFrame) -> VerdictCounts:
    """The same of a table."""
    pl = polars("a tally")
    headline = pl.col("message").str.splitn("\n", 2).struct.field("field_0")
    reported = rows.with_columns(vacuous=pl.col("vacuous").list.len() > 0, headline=headline)
    compared = rows.filter(pl.col("peers").list.len() > 0).select(PairedSample._fields)
    kinds = (
        reported.select(*VerdictKind._fields, "case", "detail")
        .unique()
        .group_by(VerdictKind._fields)
        .len()
    )
    cases = reported.select(*CASE, "status").unique()
    judged = (
        cases.filter(pl.col("status").is_in([status.value for status in Status if status.judged]))
        .select(CASE)
        .n_unique()
    )
    unanswered = reported.filter(pl.col("status") == Status.UNANSWERED)["headline"].head(
        MOST_UNANSWERED
    )
    errors, skipped = (
        reported.filter(pl.col("status") == status)["headline"].unique().sort()
        for status in (Status.ERROR, Status.SKIP)
    )
    return VerdictCounts(
        {VerdictKind(*kind): times for *kind, times in kinds.iter_rows()},
        dict(cases.group_by("status").len().iter_rows()),
        judged,
        tuple(unanswered.to_list()),
        tuple(errors),
        tuple(skipped),
        paired(PairedSample(*row) for row in compared.iter_rows()),
    )


def _headlines(verdicts: Sequence[Verdict], status: Status) -> tuple[str, ...]:
    return tuple(sorted({verdict.headline() for verdict in verdicts if verdict.status is status}))


def detail_of(verdict: Verdict) -> str:
    """The detail in one canonical form."""
    return json.dumps(verdict.detail, sort_keys=True)


def _kind(verdict: Verdict) -> VerdictKind:
    about = (verdict.property, verdict.op, verdict.dtype, verdict.regime, verdict.output)
    return VerdictKind(*about, verdict.status.value, vacuous=bool(verdict.vacuous))
