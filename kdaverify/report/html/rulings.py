"""The decision on every implementation and why, in words that need no numerics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import polars as pl

from kdaverify.checks.status import Status
from kdaverify.diagnosis.words import FITS
from kdaverify.report.evidence import REMARKABLE
from kdaverify.report.html.rows import Rows
from kdaverify.report.html.words import STATUSES, counted, headline
from kdaverify.verdicts.cannot_run import CANNOT_RUN
from kdaverify.verdicts.decision import Ruling

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


def ruled(decisions: Iterable[Decided], rows: Rows, waived: Mapping[str, Collection[int]] | None = None) -> list[Ruled]:
    """Decisions with the words for them.

    Args:
        waived: of each implementation, the places of its rows that are forgiven.
    """
    found: list[Ruled] = []
    for one in decisions:
        forgiven = pl.int_range(pl.len()).is_in([*(waived or {}).get(one.implementation, ())])
        own = rows.of(one.implementation).with_columns(forgiven.alias("waived"))
        found.append(Ruled(one.implementation, one.ruling, one.reasons, _words(one.ruling, one.reasons, own)))
    return found


def _words(ruling: Ruling, reasons: Sequence[str], rows: pl.DataFrame) -> tuple[str, ...]:
    if ruling is Ruling.INSUFFICIENT and reasons[0].startswith(CANNOT_RUN):
        return (f"It {reasons[0]}.",)
    own = rows.filter("judged")
    failed = own.filter(pl.col("rejects") & (pl.col("status") != Status.ORACLE_UNCERTIFIED.value))
    wrong, waived = failed.filter(pl.col("waived").not_()), failed.filter("waived").height
    what, beyond = f"{own.height:,} outputs", " beyond what is waived" if waived else ""
    known = f"{counted(waived, 'other wrong output')} {_are(waived)} waived." if waived and wrong.height else ""
    asked, suites = counted(own["asked"].n_unique(), "case"), counted(own["property"].n_unique(), "suite")
    covers = f"Judged: {what} in {asked} of {suites}; formats {_names(own, 'dtype')}."
    if ruling is Ruling.ACCEPT and waived:
        first = f"{waived:,} of {what} {_are(waived)} wrong and waived; every other is as accurate as the kernel declares."
    elif ruling is Ruling.ACCEPT:
        first = f"Every one of {what} is as accurate as the arithmetic that the kernel declares allows."
    elif ruling is Ruling.REJECT and wrong.height:
        first = f"{wrong.height:,} of {what} {_are(wrong.height)} wrong: {_kinds(wrong)}."
    elif ruling is Ruling.REJECT:
        first = f"No output is wrong{beyond}, and yet it is rejected: {reasons[0]}."
    elif ruling is Ruling.ERROR:
        first = f"The harness itself failed, so nothing can be concluded: {reasons[0]}."
    else:
        first = f"Nothing wrong was found{beyond}, but too little was shown to accept it: {reasons[0]}."
    return tuple(filter(None, (first, known, _where(wrong if wrong.height else failed), _closest(own), _accuracy(own), covers)))


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _kinds(wrong: pl.DataFrame) -> str:
    counts = wrong["status"].cast(pl.String).value_counts(sort=True)
    return "; ".join(f"{times:,} {STATUSES[Status(status)]}" for status, times in counts.head(MOST_NAMED).iter_rows())


def _closest(own: pl.DataFrame) -> str:
    """How near to its budget comes what passes; what is over it and passes was run again."""
    ratios = own.filter(pl.col("rejects").not_())["ratio"]
    worst, again = ratios.filter(ratios <= 1).max(), int((ratios > 1).sum())
    acquitted = f"; {counted(again, 'output')} above it passed at fresh seeds" if again else ""
    return f"What passes uses up to {100 * worst:.4g} % of its budget{acquitted}." if isinstance(worst, float) else ""


def _accuracy(own: pl.DataFrame) -> str:
    """Passes with many digits fewer than a token recurrence, and under which gates."""
    fewer = own.filter(pl.col("rejects").not_() & pl.col("digits_fewer").is_not_null())
    if not fewer.height:
        return ""
    head = f"{counted(fewer.height, 'passing output')} {_have(fewer.height)} {REMARKABLE} than a token recurrence"
    return f"{head}, as the contract allows: up to {fewer['digits_fewer'].max():.1f}, with gates {_most(fewer['regime'])}."


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


def _where(wrong: pl.DataFrame) -> str:
    """Diagnoses and gates that gather most of what is wrong."""
    told = [f"{label}: {most}" for label, most in (("Diagnosis", _diagnoses(wrong)), ("Gates", _most(wrong["regime"]))) if most]
    return f"{'. '.join(told)}." if told else ""


def _diagnoses(wrong: pl.DataFrame) -> str:
    """What fits; else that nothing does."""
    told = wrong["diagnosis"].cast(pl.String)
    fitting, diagnosed = told.filter(told.str.starts_with(FITS)), int((told != "").sum())
    return _most(fitting) or (f"no known fault fits ({counted(diagnosed, 'case')})" if diagnosed else "")


def _most(names: pl.Series) -> str:
    told = names.cast(pl.String)
    counts = told.filter(told != "").value_counts(sort=True)
    named = ", ".join(f"{headline(name)} ({times:,})" for name, times in counts.head(MOST_NAMED).iter_rows())
    return f"{named} and {counted(counts.height - MOST_NAMED, 'other')}" if counts.height > MOST_NAMED else named


def _names(frame: pl.DataFrame, column: str) -> str:
    return ", ".join(sorted(name for name in frame[column].cast(pl.String).unique() if name))
