"""From verdicts to a decision: accept, reject, harness error, or not enough evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from kdaverify.checks.status import Status
from kdaverify.verdicts.paired import Paired, paired
from kdaverify.verdicts.seal import Expected
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


# Heaviest first: a harness that broke proves nothing, a wrong kernel outweighs what was left unasked.
WEIGHT = (Ruling.ERROR, Ruling.REJECT, Ruling.INSUFFICIENT, Ruling.ACCEPT)
MOST_UNANSWERED = 3


@dataclass(frozen=True)
class Decision:
    """The end of a session for one implementation.

    Args:
        ruling: accept, reject, harness error or not enough evidence.
        reasons: heaviest first; also what an accepted implementation was excused from.
        verdicts: all of them.
    """

    implementation: str
    ruling: Ruling
    reasons: tuple[str, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def failures(self) -> tuple[Verdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.status.rejects)

    @property
    def cases(self) -> int:
        """Cases judged: all outputs of one problem under one property count once, skipped and unanswered ones not at all."""
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
        """The run as a whole, beside the legal kernels on the same problems."""
        return paired(self.verdicts)

    @property
    def vacuous(self) -> int:
        """Verdicts that prove nothing: an output that is plainly wrong would pass too."""
        return sum(verdict.status is Status.PASS and bool(verdict.vacuous) for verdict in self.verdicts)

    @property
    def acquitted(self) -> int:
        """Near misses that passed at fresh seeds."""
        return len({(*verdict.asked(), verdict.output) for verdict in self.verdicts if verdict.status is Status.PASS and verdict.recheck})

    @property
    def skipped(self) -> int:
        return count_cases(verdict for verdict in self.verdicts if verdict.status is Status.SKIP)


def count_cases(verdicts: Iterable[Verdict]) -> int:
    return len({verdict.asked() for verdict in verdicts})


def worst_grade(verdicts: Iterable[Verdict]) -> str:
    """The worst grade; F where something is wrong that has none, "" where nothing was graded."""
    return max((verdict.grade or ("F" if verdict.status.rejects else "") for verdict in verdicts), default="")


def decide(verdicts: Sequence[Verdict], expected: Expected, *, trouble: Sequence[str] = ()) -> Decision:
    """The decision on one implementation.

    Args:
        verdicts: its verdicts.
        expected: what must be shown.
        trouble: what went wrong in the harness itself, one sentence each.
    """
    weighed = {
        Ruling.ERROR: tuple(trouble),
        Ruling.REJECT: (*_rejections(verdicts), *(str(run) for run in paired(verdicts) if run.raised)),
        Ruling.INSUFFICIENT: _gaps(verdicts, expected),
    }
    ruling = next((ruling for ruling in WEIGHT if weighed.get(ruling)), Ruling.ACCEPT)
    reasons = tuple(reason for kind in WEIGHT for reason in weighed.get(kind, ()))
    excused = tuple(f"not asked of it: {name} ({why})" for name, why in expected.excused.items())
    return Decision(expected.implementation, ruling, (*reasons, *excused), tuple(verdicts))


def heaviest(decisions: Iterable[Decision]) -> Ruling:
    """The ruling on a session; with no implementation at all there is no evidence."""
    found = {decision.ruling for decision in decisions}
    return next((ruling for ruling in WEIGHT if ruling in found), Ruling.INSUFFICIENT)


def _rejections(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """One reason for every property, format and status, the most frequent first."""
    counted: dict[tuple[str, str, str], int] = {}
    for verdict in verdicts:
        if verdict.status.rejects and verdict.status is not Status.ORACLE_UNCERTIFIED:
            key = (verdict.property, verdict.dtype, verdict.status)
            counted[key] = counted.get(key, 0) + 1
    ranked = sorted(counted.items(), key=lambda item: (-item[1], item[0]))
    return tuple(f"{' '.join(filter(None, key))}: {times} {_plural('verdict', times)}" for key, times in ranked)


def _gaps(verdicts: Sequence[Verdict], expected: Expected) -> tuple[str, ...]:
    passed = [verdict for verdict in verdicts if verdict.proves()]
    pairs, properties = {(v.dtype, v.output) for v in passed}, {v.property for v in passed}
    uncertified = count_cases(v for v in verdicts if v.status is Status.ORACLE_UNCERTIFIED)
    gaps = [f"{uncertified} {_plural('case', uncertified)} without a certified reference value"] if uncertified else []
    gaps += _unanswered([verdict for verdict in verdicts if verdict.status is Status.UNANSWERED])
    if not passed:
        return (*gaps, f"nothing passed: {_why_not(verdicts)}")
    for output in expected.outputs:
        dtypes = [dtype for dtype in expected.dtypes if (dtype, output) not in pairs]
        gaps += [f"no pass for {output} in {', '.join(dtypes)}"] if dtypes else []
    unasked = [name for name in expected.properties if name not in properties and name not in expected.excused]
    gaps += [f"no pass for {_plural('suite', len(unasked))} {', '.join(unasked)}"] if unasked else []
    return tuple(gaps)


def _unanswered(verdicts: Sequence[Verdict]) -> list[str]:
    if not verdicts:
        return []
    shown = [verdict.headline() for verdict in verdicts[:MOST_UNANSWERED]]
    more = f"; and {len(verdicts) - len(shown)} more" if len(verdicts) > len(shown) else ""
    return [f"{len(verdicts)} {_plural('case', len(verdicts))} without outputs: {'; '.join(shown)}{more}"]


def _why_not(verdicts: Sequence[Verdict]) -> str:
    if any(verdict.vacuous for verdict in verdicts if verdict.status is Status.PASS):
        return "what did would pass as zeros, negated or shuffled too"
    reasons = sorted({verdict.headline() for verdict in verdicts if verdict.status is Status.SKIP})
    if not reasons:
        return "no case was judged"
    more = f" (and {len(reasons) - 1} more reasons)" if len(reasons) > 1 else ""
    return f"every case was skipped, {reasons[0]}{more}" if all(v.status is Status.SKIP for v in verdicts) else f"{reasons[0]}{more}"


def _plural(noun: str, count: int) -> str:
    return noun if count == 1 else f"{noun}s"
