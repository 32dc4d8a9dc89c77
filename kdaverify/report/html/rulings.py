"""The decision on every implementation and why, in words that need no numerics."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

import polars as pl

from kdaverify.checks.property_table import named
from kdaverify.checks.status import Status
from kdaverify.diagnosis.common_factor import common_factors, in_words
from kdaverify.diagnosis.failing_rules import failing_rules
from kdaverify.diagnosis.words import DIFFERS, FITS, PERHAPS, RESIDUAL
from kdaverify.report.evidence import REMARKABLE
from kdaverify.report.html.facts import APPROVES, SESSION, RunFacts, run_facts
from kdaverify.report.html.rows import Rows
from kdaverify.report.html.words import RULINGS, STATUSES, counted, headline
from kdaverify.report.reported_kinds import contrasts_of, random_failures, several_bugs
from kdaverify.verdicts.cannot_run import CANNOT_RUN
from kdaverify.verdicts.decision import COVERAGE, NOT_TESTED, Ruling
from kdaverify.verdicts.seal import Account

MOST_NAMED: Final = 3


@dataclass(frozen=True)
class Ruled:
    """What was decided of one implementation.

    Args:
        manager: for who decides, in words that need no numerics.
        engineer: for who mends it: where it fails, how near to the tolerance it comes.
        common: what the failing cases have in common.
        errors: reasons that are errors of the kernel, heaviest first.
        limits: reasons that are limits of the evidence.
        not_tested: what was left out, and why.
        coverage: how many combinations of properties were judged together.
        facts: what was run.
    """

    implementation: str
    ruling: Ruling
    manager: str
    engineer: tuple[str, ...]
    common: tuple[str, ...] = ()
    errors: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    not_tested: tuple[str, ...] = ()
    coverage: tuple[str, ...] = ()
    facts: RunFacts = field(default_factory=RunFacts)

    @property
    def is_provisional(self) -> bool:
        """Whether nothing was found wrong by a profile that decides on no release."""
        return self.ruling is Ruling.ACCEPT and not self.facts.is_release

    @property
    def verdict(self) -> str:
        """The decision in a word or a few."""
        if self.is_provisional:
            return f"passes {self.facts.profile} (not a release approval)"
        return RULINGS[self.ruling]

    @property
    def style(self) -> str:
        return "provisional" if self.is_provisional else self.ruling.name.lower()


class Decided(Protocol):
    """What was decided of one implementation, by whomever."""

    @property
    def implementation(self) -> str: ...
    @property
    def ruling(self) -> Ruling: ...
    @property
    def reasons(self) -> tuple[str, ...]: ...
    @property
    def limits(self) -> tuple[str, ...]: ...


def ruled(
    decisions: Iterable[Decided],
    rows: Rows,
    waived: Mapping[str, Collection[int]] = MappingProxyType({}),
    accounts: Mapping[str, Sequence[Account]] = MappingProxyType({}),
    rules: Mapping[str, str] = MappingProxyType({}),
) -> list[Ruled]:
    """Decisions with the words for them.

    Args:
        waived: of each implementation, the places of its rows that are forgiven.
        accounts: of the sessions that judged each.
        rules: by which each was decided; those of the session by default.
    """
    found: list[Ruled] = []
    for one in decisions:
        forgiven = pl.int_range(pl.len()).is_in([*waived.get(one.implementation, ())])
        own = rows.of(one.implementation).with_columns(forgiven.alias("waived"))
        facts = run_facts(
            accounts.get(one.implementation, ()),
            one.implementation,
            own,
            rules.get(one.implementation, SESSION),
        )
        found.append(_ruled(one, rows, own, facts))
    return found


def _ruled(one: Decided, rows: Rows, own: pl.DataFrame, facts: RunFacts) -> Ruled:
    common = common_factors_in(rows, one.implementation) if one.ruling is Ruling.REJECT else ()
    not_tested, coverage = (tuple(_without(one.reasons, start)) for start in (NOT_TESTED, COVERAGE))
    reported = (
        *one.limits,
        *(reason for reason in one.reasons if reason.startswith((NOT_TESTED, COVERAGE))),
    )
    return Ruled(
        one.implementation,
        one.ruling,
        _manager(one, own, facts),
        _engineer(one, own),
        common=common,
        errors=tuple(reason for reason in one.reasons if reason not in reported),
        limits=one.limits,
        not_tested=not_tested,
        coverage=coverage,
        facts=facts,
    )


def _without(reasons: Iterable[str], start: str) -> Iterable[str]:
    return (reason.removeprefix(start) for reason in reasons if reason.startswith(start))


def _judged(own: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """What was judged, what of it is wrong and not waived, and how much is waived."""
    judged = own.filter("judged")
    failed = judged.filter(
        pl.col("rejects") & (pl.col("status") != Status.ORACLE_UNCERTIFIED.value)
    )
    return judged, failed.filter(pl.col("waived").not_()), failed.filter("waived").height


def _manager(one: Decided, own: pl.DataFrame, facts: RunFacts) -> str:
    """What was found, and what that allows."""
    if one.ruling is Ruling.INSUFFICIENT and one.reasons[0].startswith(CANNOT_RUN):
        return f"It {one.reasons[0]}."
    judged, wrong, waived = _judged(own)
    what, beyond = counted(judged.height, "output"), " beyond what is waived" if waived else ""
    if waived and wrong.height:
        known = f" {counted(waived, 'other wrong output')} {_are(waived)} waived."
    else:
        known = ""
    if one.ruling is Ruling.ACCEPT:
        return _accepted(judged, what, waived, facts)
    if one.ruling is Ruling.REJECT and wrong.height:
        return (
            f"Do not ship it: {wrong.height:,} of {what} {_are(wrong.height)} wrong:"
            f" {_kinds(wrong)}.{known}"
        )
    if one.ruling is Ruling.REJECT:
        return f"No output is wrong{beyond}, and yet it is rejected: {one.reasons[0]}."
    if one.ruling is Ruling.ERROR:
        return f"The harness itself failed, so nothing can be concluded: {one.reasons[0]}."
    return (
        f"Nothing wrong was found{beyond}, but the evidence is too little to accept it:"
        f" {one.reasons[0]}."
    )


def _accepted(judged: pl.DataFrame, what: str, waived: int, facts: RunFacts) -> str:
    if waived:
        found = (
            f"{waived:,} of {what} {_are(waived)} wrong and waived; every other is within its"
            " tolerance."
        )
    else:
        found = (
            f"Every one of {what} in {_cases(judged)} is within its tolerance, the error that"
            " kernels of the declared arithmetic make."
        )
    return found if facts.is_release else f"{found} This is not a release approval. {APPROVES}"


def _engineer(one: Decided, own: pl.DataFrame) -> tuple[str, ...]:
    """Where it fails, how near to its tolerance it comes, what was judged."""
    if one.ruling is Ruling.INSUFFICIENT and one.reasons[0].startswith(CANNOT_RUN):
        return ()
    judged, wrong, _ = _judged(own)
    if not judged.height:
        return ()
    covers = (
        f"Judged: {counted(judged.height, 'output')} in {_cases(judged)} of"
        f" {counted(judged['property'].n_unique(), 'suite')}"
    )
    failed = judged.filter(
        pl.col("rejects") & (pl.col("status") != Status.ORACLE_UNCERTIFIED.value)
    )
    where = _where(wrong if wrong.height else failed)
    return tuple(
        filter(
            None,
            (
                where,
                _closest(judged),
                _accuracy(judged),
                f"{covers}; formats {_names(judged, 'dtype')}.",
            ),
        )
    )


def _cases(judged: pl.DataFrame) -> str:
    return counted(judged["case_key"].n_unique(), "case")


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _kinds(wrong: pl.DataFrame) -> str:
    counts = wrong["status"].cast(pl.String).value_counts(sort=True)
    if counts.height == 1 < wrong.height:
        return f"all {STATUSES[Status(counts[0, 0])]}"
    return "; ".join(
        f"{times:,} {STATUSES[Status(status)]}"
        for status, times in counts.head(MOST_NAMED).iter_rows()
    )


def _closest(own: pl.DataFrame) -> str:
    """How near to its tolerance comes what passes; what is over it and passes was run again."""
    ratios = own.filter(pl.col("rejects").not_())["ratio"]
    worst, again = ratios.filter(ratios <= 1).max(), int((ratios > 1).sum())
    passed = (
        f"; {counted(again, 'output')} above it passed on re-test at fresh seeds" if again else ""
    )
    if isinstance(worst, float):
        return f"What passes has errors of up to {100 * worst:.4g} % of its tolerance{passed}."
    return ""


def _accuracy(own: pl.DataFrame) -> str:
    """Passes with many digits fewer than a token recurrence, and under which gates."""
    fewer = own.filter(pl.col("rejects").not_() & pl.col("digits_fewer").is_not_null())
    if not fewer.height:
        return ""
    head = (
        f"{counted(fewer.height, 'passing output')} {_have(fewer.height)} {REMARKABLE} than a token"
        " recurrence"
    )
    return (
        f"{head}, as the contract allows: up to {fewer['digits_fewer'].max():.1f}, with gates"
        f" {_most(fewer['regime'])}."
    )


def _have(number: int) -> str:
    return "has" if number == 1 else "have"


def _where(wrong: pl.DataFrame) -> str:
    """Suites, outputs, diagnoses and gates that gather most of what is wrong."""
    parts = (
        ("Suites", _most(wrong["property"])),
        ("Outputs", _most(wrong["output"])),
        ("Gates", _most(wrong["regime"])),
    )
    text = [
        f"{label}: {most}" for label, most in (("Diagnosis", _diagnoses(wrong)), *parts) if most
    ]
    return f"{'. '.join(text)}." if text else ""


def _diagnoses(wrong: pl.DataFrame) -> str:
    """What fits, without how well, or that results vary; else that nothing fits."""
    text = wrong["diagnosis"].cast(pl.String)
    diagnosed = int((text != "").sum())
    fitting = text.filter(text.str.starts_with(FITS)).str.split(RESIDUAL).list.first()
    # A race matches no bug call by call: of one it was said that no known bug matches.
    vary = text.str.starts_with(DIFFERS) | text.str.starts_with(PERHAPS)
    races = f"{DIFFERS} ({counted(int(vary.sum()), 'case')})" if vary.any() else ""
    return ", ".join(filter(None, (_most(fitting), races))) or (
        f"no known bug matches ({counted(diagnosed, 'case')})" if diagnosed else ""
    )


def _most(names: pl.Series) -> str:
    text = names.cast(pl.String)
    counts = text.filter(text != "").value_counts(sort=True)
    named = ", ".join(
        f"{headline(name)} ({times:,})" for name, times in counts.head(MOST_NAMED).iter_rows()
    )
    if counts.height > MOST_NAMED:
        return f"{named} and {counted(counts.height - MOST_NAMED, 'other')}"
    return named


def _names(frame: pl.DataFrame, column: str) -> str:
    return ", ".join(sorted(name for name in frame[column].cast(pl.String).unique() if name))


MOST_ROWS: Final = 100_000
"""Each takes about 50 microseconds; of more, every failure counts and as many of the first passes
as there is room for."""


def common_factors_in(rows: Rows, implementation: str) -> tuple[str, ...]:
    """Sentences that separate failing from passing cases; () where nothing does."""
    own = rows.counted.filter((pl.col("implementation") == implementation) & pl.col("judged"))
    failing = own.filter("rejects")["row"]
    if failing.is_empty():
        return ()
    failures = [*rows.verdicts(failing.head(MOST_ROWS).to_list()).values()]
    paired = own.filter(pl.col("property").is_in(named(lambda found: found.paired)))
    kept = paired.sort("rejects", "row", descending=[True, False])["row"].head(MOST_ROWS)
    compared = [*rows.verdicts(kept.to_list()).values()]
    ruled = own.filter(~pl.col("property").is_in(named(lambda found: found.paired)))
    others = ruled.sort("rejects", "row", descending=[True, False])["row"].head(MOST_ROWS)
    return (
        *several_bugs(failures),
        *random_failures(failures),
        *in_words(common_factors(compared)),
        # Beside plain calls that fail, as the terminal counts them.
        *failing_rules([*compared, *rows.verdicts(others.to_list()).values()]),
        *(f"changing one thing at a time: {said}" for said in contrasts_of(failures)),
    )
