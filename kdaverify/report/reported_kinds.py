"""A run's failures as engineers read them: each kind once, explained ones by number."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

from kdaverify.checks.borderline import NEAR
from kdaverify.checks.property_table import PROPERTIES, plain_call
from kdaverify.diagnosis.words import DIFFERS, FITS, NOTHING_FAILS, PERHAPS, further, known_bugs
from kdaverify.verdicts.verdict import Verdict

_PLACES: Final = {name: place for place, name in enumerate(PROPERTIES)}
NOT_MINIMISED: Final = "not minimised"
CALLS: Final[Mapping[str, str]] = {
    "forward": "a plain forward fails",
    "gradients": "plain gradients fail",
}
"""What is said of the call that a failure is the same as."""


@dataclass(frozen=True)
class ReportedKind:
    """Failures of one kind.

    Args:
        rows: those of the first suite in the order of evidence before others.
        beside: other outputs that fail in the same calls and in no others, with their number.
    """

    rows: tuple[Verdict, ...]
    beside: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def elsewhere(self) -> Counter[str]:
        """The other suites that make the same call, by the number of failures."""
        return Counter(row.property for row in self.rows if row.property != self.rows[0].property)

    @property
    def stage(self) -> str | None:
        """Of the first that was localised."""
        return next((row.stage for row in self.rows if row.stage is not None), None)

    @property
    def shown(self) -> Verdict:
        """The one that stands for them: diagnosed, located, clear, then the smallest."""
        return min(
            self.rows,
            key=lambda row: (
                not row.diagnosis,
                not row.minimised,
                row.stage is None,
                not row.is_clear(),
                _size(row),
            ),
        )

    @property
    def times(self) -> int:
        """Failures, those of other outputs of the same calls with them."""
        return len(self.rows) + sum(self.beside.values())

    @property
    def diagnosed(self) -> bool:
        """Whether a known bug explains it, or that results differ from run to run."""
        return any(row.diagnosis.startswith((FITS, DIFFERS)) for row in self.rows)

    @property
    def name(self) -> str:
        """Suite, output and status."""
        return f"{self.rows[0].property} {self.rows[0].output} {self.rows[0].status}"

    @property
    def bugs(self) -> dict[str, str]:
        """The titles of the known bugs that it may be of, by id."""
        return {bug: title for row in self.rows for bug, title in known_bugs(row.diagnosis).items()}

    @property
    def perhaps_a_race(self) -> bool:
        """Whether no more is known of it than that results of another call differ between runs."""
        first, _, more = self.shown.diagnosis.partition("; ")
        return first.startswith(PERHAPS) and (not more or more.startswith(NOTHING_FAILS))


def reported_kinds(failures: Sequence[Verdict]) -> list[ReportedKind]:
    """What is not the same as another failure: kinds that a diagnosis explains first, then a plain
    forward before what is derived from it.

    Suites that make one and the same plain call are one kind; so are outputs that fail together.
    """
    rows = sorted(
        (row for row in failures if not (row.same_as or row.left_open())), key=order_of_evidence
    )
    found = dict[tuple[str, ...], list[Verdict]]()
    # Not every case is localised: one that is not counts with those of its kind that are.
    stages = {_kind(row): row.stage for row in reversed(rows) if row.stage is not None}
    for row in rows:
        found.setdefault((*_kind(row), row.stage or stages.get(_kind(row), "") or ""), []).append(
            row
        )
    apart = (part for rows in found.values() for part in _by_diagnosis(rows))
    return _folded(sorted((ReportedKind(tuple(rows)) for rows in apart), key=_rank))


def _by_diagnosis(rows: Sequence[Verdict]) -> list[list[Verdict]]:
    """Failures of one kind, and by itself each that matches no known bug of the first diagnosed."""
    diagnosed = [(row, known_bugs(row.diagnosis)) for row in rows]
    first = next((bugs for _, bugs in diagnosed if bugs), {})
    second = [row for row, bugs in diagnosed if bugs and not bugs.keys() & first.keys()]
    return [[row for row in rows if row not in second], *([row] for row in second)]


def by_bug(kinds: Sequence[ReportedKind]) -> list[list[ReportedKind]]:
    """Kinds that a known bug explains, those of one bug together, in the order of the kinds.

    Kinds that may be of several bugs go with the first kind that may be of one of these.
    """
    found = list[list[ReportedKind]]()
    for kind in kinds:
        own = next((group for group in found if group[0].bugs.keys() & kind.bugs.keys()), None)
        if own is not None:
            own.append(kind)
        elif kind.bugs:
            found.append([kind])
    return found


def several_bugs(failures: Sequence[Verdict]) -> list[str]:
    """Sentences where failures match different known bugs, or one that does not explain them all;
    none where one does: it is said beside its failure.
    """
    found = by_bug(reported_kinds(failures))
    named = "; ".join(map(_bug_and_kinds, found))
    if len(found) > 1:
        return [f"{len(found)} bugs, by the known ones that failures match: {named}"]
    left = dict.fromkeys(filter(None, (further(row.diagnosis) for row in failures)))
    return [f"probably a second bug: {said}" for said in left]


def _bug_and_kinds(group: Sequence[ReportedKind]) -> str:
    common = dict(group[0].bugs)
    for kind in group[1:]:
        common = {bug: title for bug, title in common.items() if bug in kind.bugs} or common
    bugs = " or ".join(f"{bug} ({title})" for bug, title in common.items())
    return f"{bugs} matches {', '.join(kind.name for kind in group)}"


def same(failures: Sequence[Verdict]) -> list[str]:
    """One sentence for each plain call that explains further failures."""
    said: list[str] = []
    for call, words in CALLS.items():
        suites = Counter(row.property for row in failures if row.same_as == call)
        number = suites.total()
        if number:
            head = "1 further failure is" if number == 1 else f"{number} further failures are"
            said.append(f"{head} the same: {words} on those problems too ({_listed(suites)})")
    return said


def minimised_or_why(kind: ReportedKind, failures: Sequence[Verdict]) -> str:
    """How to replay the smallest case of a kind, or why there is none."""
    shown, own = kind.shown, called(kind.rows[0])
    if shown.minimised:
        return shown.minimised
    if any(row.status.takes_process for row in failures):
        return f"{NOT_MINIMISED}: a call ended the kernel's process, so it is not run again"
    if not shown.status.localised:
        return f"{NOT_MINIMISED}: {shown.status} does not depend on the size of the case"
    smaller = [row for row in failures if "\n" in row.minimised and called(row) == own]
    if smaller:
        return f"{NOT_MINIMISED}: {smaller[0].property} {smaller[0].output}, of the same call, is"
    if any(row.minimised for row in failures):
        return f"{NOT_MINIMISED}: no time was left for it (--diagnosis gives more)"
    return f"{NOT_MINIMISED}: failures were not diagnosed (--diagnosis SECONDS does)"


def contrasts_of(failures: Sequence[Verdict]) -> list[str]:
    """What failures depend on, found by changing one thing at a time; each sentence once."""
    return [*dict.fromkeys(line for row in failures for line in row.contrast.splitlines())]


def random_failures(failures: Sequence[Verdict]) -> list[str]:
    """One sentence where results of equal calls differ, and nothing was found that this depends on:
    of a state that is stored too early no line above the failures said that it is a race.
    """
    kinds = [kind for kind in reported_kinds(failures) if kind.shown.diagnosis.startswith(DIFFERS)]
    if not kinds or any(said.startswith(DIFFERS) for said in contrasts_of(failures)):
        return []
    return [f"{DIFFERS}: in {', '.join(dict.fromkeys(map(_call_and_output, kinds)))}"]


def _call_and_output(kind: ReportedKind) -> str:
    return f"{called(kind.rows[0])} {kind.rows[0].output}"


def left_open(failures: Sequence[Verdict]) -> str:
    """One sentence on the borderline failures that were not run again; "" where there are none."""
    suites = Counter(row.property for row in failures if row.left_open())
    if not suites:
        return ""
    if suites.total() == 1:
        head = "1 borderline failure, at most"
    else:
        head = f"{suites.total()} borderline failures, at most"
    return (
        f"{head} {NEAR:g} times the tolerance, not tested at fresh seeds: the kernel is rejected"
        f" without ({_listed(suites)})"
    )


def _listed(suites: Counter[str]) -> str:
    return ", ".join(
        f"{name} {times}"
        for name, times in sorted(
            suites.items(), key=lambda item: _PLACES.get(item[0], len(_PLACES))
        )
    )


def called(row: Verdict) -> str:
    """The plain call that a verdict is about, whichever suite makes it; else the suite."""
    return (
        plain_call(row.property, row.detail) if row.property in PROPERTIES else ""
    ) or row.property


def _kind(row: Verdict) -> tuple[str, str, str]:
    return called(row), row.output, row.status


def _size(row: Verdict) -> int:
    """How much there is to look at in a problem: the product of its sizes."""
    fields = json.loads(row.problem) if row.problem else {}
    sizes = (value for name, value in fields.items() if type(value) is int and name != "seed")
    return prod(max(1, size) for size in sizes)


def order_of_evidence(row: Verdict) -> int:
    """The place of its suite in the order in which kinds of failure are reported."""
    return _PLACES.get(row.property, len(_PLACES))


def _rank(group: ReportedKind) -> tuple[bool, int, int]:
    return not group.diagnosed, order_of_evidence(group.rows[0]), -len(group.rows)


def _folded(ranked: Sequence[ReportedKind]) -> list[ReportedKind]:
    """Groups without those whose calls all fail in another output already, which names them."""
    kept = list[ReportedKind]()
    for group in ranked:
        first = next((other for other in kept if _holds(other, group)), None)
        if first is None:
            kept.append(group)
        else:
            first.beside[group.rows[0].output] = first.beside.get(group.rows[0].output, 0) + len(
                group.rows
            )
    return kept


def _holds(other: ReportedKind, group: ReportedKind) -> bool:
    a, b = other.rows[0], group.rows[0]
    alike = (called(a), a.status, other.stage) == (
        called(b),
        b.status,
        group.stage,
    ) and a.output != b.output
    return (
        alike
        and bool(b.case)
        and (not group.bugs or bool(group.bugs.keys() & other.bugs.keys()))
        and {row.case_key() for row in group.rows} <= {row.case_key() for row in other.rows}
    )
