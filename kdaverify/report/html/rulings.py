"""The decision on every implementation and why, in words that need no numerics."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from kdaverify.checks.status import Status
from kdaverify.report.html.rows import Rows
from kdaverify.report.html.words import STATUSES, counted, figure
from kdaverify.verdicts.decision import Decision, Ruling
from kdaverify.verdicts.paired import paired
from kdaverify.verdicts.verdict import Verdict

MOST_NAMED: Final = 3
MOST_REASONS: Final = 6


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


def ruled(decisions: Iterable[Decision], rows: Rows) -> list[Ruled]:
    """What a session decided."""
    return [Ruled(d.implementation, d.ruling, d.reasons, _words(d.implementation, d.ruling, rows)) for d in decisions]


def ruled_from_rows(rows: Rows, suites: Sequence[str]) -> list[Ruled]:
    """What follows from the rows alone: whatever they do not show is missing evidence.

    Args:
        suites: the shipped ones; each needs a pass.
    """
    found: list[Ruled] = []
    for name in rows.implementations:
        wrong, gaps = _rejections(rows, name), _gaps(rows, name, suites)
        ruling = Ruling.REJECT if wrong else Ruling.INSUFFICIENT if gaps else Ruling.ACCEPT
        found.append(Ruled(name, ruling, (*wrong, *gaps), _words(name, ruling, rows)))
    return found


def _of(rows: Rows, implementation: str) -> pl.DataFrame:
    return rows.counted.filter(pl.col("implementation") == implementation)


def _rejections(rows: Rows, implementation: str) -> tuple[str, ...]:
    own = _of(rows, implementation).filter(pl.col("rejects") & (pl.col("status") != Status.ORACLE_UNCERTIFIED.value))
    kinds = own.group_by("property", "dtype", "status").len().sort("len", "property", "dtype", "status", descending=[True, False, False, False])
    told = (f"{' '.join(filter(None, kind))}: {counted(times, 'verdict')}" for *kind, times in kinds.iter_rows())
    return (*told, *_raised(rows, implementation))


def _raised(rows: Rows, implementation: str) -> tuple[str, ...]:
    """What only the run as a whole shows, one output and format at a time."""
    runs = rows.full.filter((pl.col("implementation") == implementation) & (pl.col("peers").list.len() > 0))
    frame = runs.select("property", "dtype", "output", "contract", "case", "peers").collect(engine="streaming")
    found: list[str] = []
    for _, group in frame.group_by("dtype", "output", "contract", maintain_order=True):
        verdicts = [Verdict(implementation=implementation, status=Status.PASS, **row) for row in group.to_dicts()]
        found += [str(run) for run in paired(verdicts) if run.raised]
    return tuple(sorted(found))


def _gaps(rows: Rows, implementation: str, suites: Sequence[str]) -> tuple[str, ...]:
    own = _of(rows, implementation)
    uncertified, unanswered = (own.filter(pl.col("status") == s.value)["asked"].n_unique() for s in (Status.ORACLE_UNCERTIFIED, Status.UNANSWERED))
    gaps = [f"{counted(uncertified, 'case')} without a certified reference value"] if uncertified else []
    gaps += [f"{counted(unanswered, 'case')} without outputs"] if unanswered else []
    proved = own.filter("proves")
    shown, lacking = set(proved["property"]), own.group_by("output").agg(pl.col("dtype").unique().sort()).sort("output")
    passed = set(proved.select("dtype", "output").unique().iter_rows())
    for output, dtypes in lacking.iter_rows():
        without = [dtype for dtype in dtypes if (dtype, output) not in passed]
        gaps += [f"no pass for {output} in {', '.join(without)}"] if without and output != "call" else []
    unasked = [suite for suite in suites if suite not in shown]
    return (*gaps, *([f"no pass for the suites {', '.join(unasked)}, and the record does not say that they were excused"] if unasked else []))


def _words(implementation: str, ruling: Ruling, rows: Rows) -> tuple[str, ...]:
    own = _of(rows, implementation).filter("judged")
    wrong, what = own.filter("rejects"), f"{own.height:,} outputs"
    covers = f"Judged: {what} in {counted(own['asked'].n_unique(), 'case')}, {counted(own['property'].n_unique(), 'suite')}, formats {_names(own, 'dtype')}."
    worst = own.filter(pl.col("rejects").not_())["ratio"].max()
    closest = f"What passes uses at most {figure(worst)} of what the declared arithmetic allows." if isinstance(worst, float) else ""
    if ruling is Ruling.ACCEPT:
        first = f"Every one of {what} is as accurate as the arithmetic that the kernel declares allows."
    elif ruling is Ruling.REJECT and wrong.height:
        first = f"{wrong.height:,} of {what} are wrong: {_kinds(wrong)}."
    elif ruling is Ruling.REJECT:
        first = "No single output is wrong, but over the whole run the error is larger than that of legal kernels."
    elif ruling is Ruling.ERROR:
        first = "The harness itself failed, so nothing can be concluded."
    else:
        first = "Nothing wrong was found, but too little was shown to accept it."
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
    named = ", ".join(f"{name} ({times:,})" for name, times in counts.head(MOST_NAMED).iter_rows())
    return f"{named} and {counted(counts.height - MOST_NAMED, 'other')}" if counts.height > MOST_NAMED else named


def _names(frame: pl.DataFrame, column: str) -> str:
    return ", ".join(sorted(name for name in frame[column].cast(pl.String).unique() if name))
