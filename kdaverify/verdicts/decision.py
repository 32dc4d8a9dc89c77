"""From verdicts to a decision: accept, reject, harness error, or not enough evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Protocol

from kdaverify.checks.status import REFUSED, Status
from kdaverify.verdicts.cannot_run import cannot_run
from kdaverify.verdicts.paired import Paired
from kdaverify.verdicts.seal import Expected
from kdaverify.verdicts.tally import VerdictCounts, tally
from kdaverify.verdicts.verdict import Verdict


class Ruling(StrEnum):
    """What a session may conclude."""

    ACCEPT = "accept"
    REJECT = "reject"
    ERROR = "harness error"
    INSUFFICIENT = "not enough evidence"

    @property
    def exit_code(self) -> int:
        return {Ruling.ACCEPT: 0, Ruling.REJECT: 1, Ruling.ERROR: 2, Ruling.INSUFFICIENT: 3}[self]


# Heaviest first: a harness that broke is no evidence, a wrong kernel outweighs what was not
# tested.
WEIGHT = (Ruling.ERROR, Ruling.REJECT, Ruling.INSUFFICIENT, Ruling.ACCEPT)


NOT_TESTED, COVERAGE = "not tested: ", "coverage: "
"""How reasons begin that are reported whatever was decided."""
CONVENTIONS = "conventions"
"""The property that is tested first, and stops what else there is."""


class HasRuling(Protocol):
    """Whatever ends in a ruling."""

    @property
    def ruling(self) -> Ruling: ...


@dataclass(frozen=True)
class Decision:
    """The end of a session for one implementation.

    Args:
        ruling: accept, reject, harness error or not enough evidence.
        reasons: heaviest first; also what does not apply to an accepted implementation.
        verdicts: all of them.
        limits: of the reasons, no errors of the kernel: missing evidence, harness trouble.
    """

    implementation: str
    ruling: Ruling
    reasons: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    limits: tuple[str, ...] = ()

    @property
    def failures(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.status.rejects)

    @property
    def cases(self) -> int:
        """Cases judged: a problem's outputs under a property once, skipped ones not at all."""
        return count_cases(verdict for verdict in self.verdicts if verdict.status.judged)

    @property
    def grades(self) -> dict[str, str]:
        """The worst grade by format; F where something is wrong that has none."""
        by_dtype: dict[str, list[Verdict]] = {}
        for verdict in self.verdicts:
            by_dtype.setdefault(verdict.dtype, []).append(verdict)
        grades = {dtype: worst_grade(verdicts) for dtype, verdicts in sorted(by_dtype.items())}
        return {dtype: grade for dtype, grade in grades.items() if grade}

    @cached_property
    def paired(self) -> tuple[Paired, ...]:
        """The run as a whole, beside the conforming kernels on the same problems."""
        return tally(self.verdicts).runs

    @cached_property
    def stop(self) -> Verdict | None:
        """What kept suites from being scored: a wrong declaration, a call without an answer."""
        found = next(
            (verdict for verdict in self.failures if verdict.property == CONVENTIONS), None
        )
        alone = all(
            verdict.property == CONVENTIONS or verdict.status is Status.SKIP
            for verdict in self.verdicts
        )
        return found if alone else None

    @cached_property
    def cannot_run(self) -> str:
        """Why it cannot run here, "" where it can."""
        return cannot_run(tally(self.verdicts))

    @property
    def vacuous(self) -> int:
        """Inconclusive passes: an output that is plainly wrong would pass too."""
        return sum(
            verdict.status is Status.PASS and bool(verdict.vacuous) for verdict in self.verdicts
        )

    @property
    def passed_on_retest(self) -> int:
        """Borderline failures that passed at fresh seeds."""
        return len(
            {
                (*verdict.case_key(), verdict.output)
                for verdict in self.verdicts
                if verdict.status is Status.PASS and verdict.recheck
            }
        )

    @property
    def less_accurate(self) -> tuple[Verdict, ...]:
        """Passes with many digits fewer than a token recurrence (`checks.digits`), worst first."""
        found = [
            verdict
            for verdict in self.verdicts
            if verdict.digits_fewer is not None and verdict.status is Status.PASS
        ]
        return tuple(
            sorted(
                found,
                key=lambda verdict: (-(verdict.digits_fewer or 0.0), verdict.case, verdict.output),
            )
        )

    @property
    def skipped(self) -> int:
        return count_cases(verdict for verdict in self.verdicts if verdict.status is Status.SKIP)


def count_cases(verdicts: Iterable[Verdict]) -> int:
    return len({verdict.case_key() for verdict in verdicts})


def worst_grade(verdicts: Iterable[Verdict]) -> str:
    """The worst grade; F where something is wrong that has none, "" where nothing was graded."""
    return max(
        (verdict.grade or ("F" if verdict.status.rejects else "") for verdict in verdicts),
        default="",
    )


def decide(
    verdicts: Sequence[Verdict], expected: Expected, *, trouble: Sequence[str] = ()
) -> Decision:
    """The decision on one implementation.

    Args:
        verdicts: its verdicts.
        expected: what must be shown.
        trouble: what went wrong in the harness itself, one sentence each.
    """
    found = conclude(tally(verdicts), expected, {Ruling.ERROR: trouble})
    return Decision(
        expected.implementation, found.ruling, found.reasons, tuple(verdicts), found.limits
    )


@dataclass(frozen=True)
class Conclusion:
    """The ruling and its reasons, heaviest first, then what was not tested, and the coverage.

    Args:
        limits: of the reasons, no errors of the kernel: missing evidence, harness trouble.
    """

    ruling: Ruling
    reasons: tuple[str, ...]
    limits: tuple[str, ...]


def conclude(
    counted: VerdictCounts, expected: Expected, beside: Mapping[Ruling, Sequence[str]]
) -> Conclusion:
    """The ruling on these verdicts.

    Args:
        counted: the verdicts.
        expected: what must be shown.
        beside: reasons that do not come from the verdicts, by what they lead to; reported before
            the others of their weight.
    """
    unable = cannot_run(counted)
    own: dict[Ruling, tuple[str, ...]] = {
        Ruling.REJECT: (
            ()
            if unable
            else (*_rejections(counted), *(str(run) for run in counted.runs if run.raised))
        ),
        Ruling.INSUFFICIENT: (unable,) if unable else _gaps(counted, expected),
    }
    weighed = {kind: (*beside.get(kind, ()), *own.get(kind, ())) for kind in WEIGHT}
    ruling = next((kind for kind in WEIGHT if weighed[kind]), Ruling.ACCEPT)
    not_applicable = (
        f"{NOT_TESTED}{name} ({why})" for name, why in expected.not_applicable.items()
    )
    outside = (f"{NOT_TESTED}{what}" for what in expected.outside)
    refused = (f"{NOT_TESTED}{why}" for why in counted.skipped if why.startswith(REFUSED))
    covered = (f"{COVERAGE}{one}" for one in expected.covered)
    reasons = (
        *(reason for kind in WEIGHT for reason in weighed[kind]),
        *not_applicable,
        *outside,
        *refused,
        *covered,
    )
    return Conclusion(ruling, reasons, (*weighed[Ruling.ERROR], *weighed[Ruling.INSUFFICIENT]))


def heaviest(decisions: Iterable[HasRuling]) -> Ruling:
    """The ruling on a session; with no implementation at all there is no evidence."""
    found = {decision.ruling for decision in decisions}
    return next((ruling for ruling in WEIGHT if ruling in found), Ruling.INSUFFICIENT)


def _rejections(counted: VerdictCounts) -> tuple[str, ...]:
    """One reason for every property, format and status, the most frequent first."""
    times: Counter[tuple[str, str, str]] = Counter()
    for kind, count in counted.kinds.items():
        if kind.rejects() and kind.status != Status.ORACLE_UNCERTIFIED:
            times[kind.property, kind.dtype, kind.status] += count
    ranked = sorted(times.items(), key=lambda item: (-item[1], item[0]))
    return tuple(
        f"{' '.join(filter(None, key))}: {count} {plural('verdict', count)}"
        for key, count in ranked
    )


def _gaps(counted: VerdictCounts, expected: Expected) -> tuple[str, ...]:
    passed = [kind for kind in counted.kinds if kind.proves()]
    pairs = {(kind.dtype, kind.output) for kind in passed}
    properties = {kind.property for kind in passed}
    uncertified = counted.cases.get(Status.ORACLE_UNCERTIFIED, 0)
    if uncertified:
        gaps = [f"{uncertified} {plural('case', uncertified)} without a certified reference value"]
    else:
        gaps = []
    gaps += _unanswered(counted)
    if not passed:
        return (*gaps, f"nothing passed: {_why_not(counted)}")
    for output in expected.outputs:
        dtypes = [dtype for dtype in expected.dtypes if (dtype, output) not in pairs]
        gaps += [f"no pass for {output} in {', '.join(dtypes)}"] if dtypes else []
    untested = [
        name
        for name in expected.properties
        if name not in properties and name not in expected.not_applicable
    ]
    gaps += (
        [f"no pass for {plural('suite', len(untested))} {', '.join(untested)}"] if untested else []
    )
    return tuple(gaps)


def _unanswered(counted: VerdictCounts) -> list[str]:
    count = counted.count(Status.UNANSWERED)
    if not count:
        return []
    left = count - len(counted.unanswered)
    more = f"; and {left} more" if left > 0 else ""
    return [
        f"{count} {plural('case', count)} without outputs: {'; '.join(counted.unanswered)}{more}"
    ]


def _why_not(counted: VerdictCounts) -> str:
    if any(kind.vacuous for kind in counted.kinds if kind.status == Status.PASS):
        return "zeros, negated or shuffled outputs would pass too (inconclusive)"
    if not counted.skipped:
        return "no case was judged"
    first, *others = counted.skipped
    more = f" (and {len(others)} more {plural('reason', len(others))})" if others else ""
    if {*counted.cases} == {Status.SKIP.value}:
        return f"every case was skipped, {first}{more}"
    return f"{first}{more}"


def plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
