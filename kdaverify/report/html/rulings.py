"""The decision on every implementation and why, in words that need no numerics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import polars as pl

from kdaverify.checks.status import Status
from kdaverify.report.html.rows import Rows
from kdaverify.report.html.words import STATUSES, counted, headline
from kdaverify.verdicts.decision import Expected, Ruling
from kdaverify.verdicts.paired import paired
from kdaverify.verdicts.verdict import Verdict

MOST_NAMED: Final = 3


@dataclass(frozen=True)
class Ruled:
    """What was decided of one implementation.

    Args:
        reasons: heaviest first.
        words: sentences for who decides, the most important first.
    """

    implementation: str
    ruling: Ruling
    reasons: tuple[str, ...]
    words: tuple[str, ...]


class Decided(Protocol):
    """What was decided of one implementation, by whomever."""

    @property
    def implementation(self) -> str: ...
    @property
    def ruling(self) -> Ruling: ...
    @property
    def reasons(self) -> tuple[str, ...]: ...


def ruled(decisions: Iterable[Decided], rows: Rows) -> list[Ruled]:
    """Decisions with the words for them."""
    return [Ruled(d.implementation, d.ruling, d.reasons, _words(d.ruling, d.reasons, rows.of(d.implementation))) for d in decisions]


def ruled_from_rows(rows: Rows, expected: Mapping[str, Expected]) -> list[Ruled]:
    """What follows from the rows alone: whatever they do not show is missing evidence.

    Args:
        expected: what must be shown, by implementation.
    """
    found: list[Ruled] = []
    for name in rows.implementations:
        wrong, gaps = (*_rejections(rows.of(name)), *_raised(rows, name)), _gaps(rows.of(name), expected[name])
        ruling = Ruling.REJECT if wrong else Ruling.INSUFFICIENT if gaps else Ruling.ACCEPT
        excused = (f"not asked of it: {suite} ({why})" for suite, why in expected[name].excused.items())
        reasons = (*wrong, *gaps, *excused)
        found.append(Ruled(name, ruling, reasons, _words(ruling, reasons, rows.of(name))))
    return found


def as_asked(rows: Rows, suites: Sequence[str]) -> dict[str, Expected]:
    """What a record must show that does not say it itself: all suites, and every output of whole calls in every format that it has.

    Args:
        suites: the shipped ones.
    """
    return {name: _as_asked(name, rows.of(name), suites) for name in rows.implementations}


def _as_asked(name: str, own: pl.DataFrame, suites: Sequence[str]) -> Expected:
    whole = own.filter(pl.col("judged") & (pl.col("property") == "forward"))
    dtypes, outputs = (tuple(sorted(whole[column].cast(pl.String).unique())) for column in ("dtype", "output"))
    return Expected(name, dtypes, outputs, tuple(sorted({*suites, *own["property"].cast(pl.String)})))


def _rejections(own: pl.DataFrame) -> tuple[str, ...]:
    wrong = own.filter(pl.col("rejects") & (pl.col("status") != Status.ORACLE_UNCERTIFIED.value))
    kinds = wrong.group_by(pl.col("property", "dtype", "status").cast(pl.String)).len()
    ranked = kinds.sort("len", "property", "dtype", "status", descending=[True, False, False, False])
    return tuple(f"{' '.join(filter(None, kind))}: {counted(times, 'verdict')}" for *kind, times in ranked.iter_rows())


def _raised(rows: Rows, implementation: str) -> tuple[str, ...]:
    """What only the run as a whole shows, one output and format at a time."""
    runs = rows.full.filter((pl.col("implementation") == implementation) & (pl.col("peers").list.len() > 0))
    frame = runs.select("property", "dtype", "output", "contract", "case", "peers").collect(engine="streaming")
    found: list[str] = []
    for _, group in frame.group_by("dtype", "output", "contract", maintain_order=True):
        verdicts = [Verdict(implementation=implementation, status=Status.PASS, **row) for row in group.to_dicts()]
        found += [str(run) for run in paired(verdicts) if run.raised]
    return tuple(sorted(found))


def _gaps(own: pl.DataFrame, expected: Expected) -> tuple[str, ...]:
    gaps: list[str] = []
    for status, what in ((Status.ORACLE_UNCERTIFIED, "without a certified reference value"), (Status.UNANSWERED, "without outputs")):
        cases = own.filter(pl.col("status") == status.value)["asked"].n_unique()
        gaps += [f"{counted(cases, 'case')} {what}"] if cases else []
    proved = own.filter("proves").select(pl.col("dtype", "output", "property").cast(pl.String))
    passed, shown = set(proved.select("dtype", "output").iter_rows()), set(proved["property"])
    for output in expected.outputs:
        without = [dtype for dtype in expected.dtypes if (dtype, output) not in passed]
        gaps += [f"no pass for {output} in {', '.join(without)}"] if without else []
    unasked = [suite for suite in expected.properties if suite not in shown and suite not in expected.excused]
    return (*gaps, *([f"no pass for suites: {', '.join(unasked)}"] if unasked else []))


def _words(ruling: Ruling, reasons: Sequence[str], rows: pl.DataFrame) -> tuple[str, ...]:
    own = rows.filter("judged")
    wrong, what = own.filter("rejects"), f"{own.height:,} outputs"
    asked, suites = counted(own["asked"].n_unique(), "case"), counted(own["property"].n_unique(), "suite")
    covers = f"Judged: {what} in {asked} of {suites}; formats {_names(own, 'dtype')}."
    worst = own.filter(pl.col("rejects").not_())["ratio"].max()
    closest = f"What passes uses up to {100 * worst:.4g} % of its budget." if isinstance(worst, float) else ""
    if ruling is Ruling.ACCEPT:
        first = f"Every one of {what} is as accurate as the arithmetic that the kernel declares allows."
    elif ruling is Ruling.REJECT and wrong.height:
        first = f"{wrong.height:,} of {what} are wrong: {_kinds(wrong)}."
    elif ruling is Ruling.REJECT:
        first = "No single output is wrong, but over the whole run the error is larger than that of legal kernels."
    elif ruling is Ruling.ERROR:
        first = f"The harness itself failed, so nothing can be concluded: {reasons[0]}."
    else:
        first = f"Nothing wrong was found, but too little was shown to accept it: {reasons[0]}."
    return tuple(filter(None, (first, _where(wrong), closest, covers)))


def _kinds(wrong: pl.DataFrame) -> str:
    counts = wrong["status"].cast(pl.String).value_counts(sort=True)
    return "; ".join(f"{times:,} {STATUSES[Status(status)]}" for status, times in counts.head(MOST_NAMED).iter_rows())


def _where(wrong: pl.DataFrame) -> str:
    """Gates and diagnoses that gather most of what is wrong."""
    if wrong.is_empty():
        return ""
    told = [f"{label}: {most}" for column, label in (("diagnosis", "Diagnosis"), ("regime", "Gates")) if (most := _most(wrong, column))]
    return f"{'. '.join(told)}." if told else ""


def _most(wrong: pl.DataFrame, column: str) -> str:
    counts = wrong.filter(pl.col(column).cast(pl.String) != "")[column].cast(pl.String).value_counts(sort=True)
    named = ", ".join(f"{headline(name)} ({times:,})" for name, times in counts.head(MOST_NAMED).iter_rows())
    return f"{named} and {counted(counts.height - MOST_NAMED, 'other')}" if counts.height > MOST_NAMED else named


def _names(frame: pl.DataFrame, column: str) -> str:
    return ", ".join(sorted(name for name in frame[column].cast(pl.String).unique() if name))
