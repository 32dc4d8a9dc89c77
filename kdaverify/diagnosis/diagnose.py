"""From a failing case to the cause: the smallest input, and suspects that fit all inputs."""

from __future__ import annotations

import time
from dataclasses import replace
from itertools import groupby
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.checks.location import Location
from kdaverify.checks.properties import check
from kdaverify.diagnosis.by_elements import by_elements
from kdaverify.diagnosis.diagnosis import Diagnosis
from kdaverify.diagnosis.fault_comparison import FaultComparison, Match
from kdaverify.diagnosis.likeness import wrong_elements
from kdaverify.diagnosis.minimise import Failure, failure, minimise
from kdaverify.diagnosis.nonfinite import by_places
from kdaverify.diagnosis.question import PropertyCase, as_called, is_about_sizes
from kdaverify.diagnosis.races import RUNS, examined, race
from kdaverify.diagnosis.separate import separate
from kdaverify.diagnosis.suspects import declared, suspects
from kdaverify.diagnosis.traces import traces
from kdaverify.diagnosis.words import CONSISTENT, NOTHING_FAILS
from kdaverify.limits import DIAGNOSIS_SECONDS
from kdaverify.operator import operator_of
from oracles.certified import UncertifiedError

LARGEST: Final = 0.5
"""Largest `cost` of a case that every suspect is run on."""
NOTHING: Final = (
    f"{NOTHING_FAILS}, and {RUNS} calls give the same result: there is nothing to diagnose"
)
WITHIN: Final = (
    "as one plain call, and as a whole, the outputs are within tolerance: too little is wrong to be"
    " compared with known faults"
)
OF_RULE: Final = (
    "calls of this rule alone show it: one call of its case is within tolerance, so that there is"
    " nothing to compare with known faults"
)
SMALL: Final = (
    "compared element by element where the error is 8 times that of a right kernel, since the"
    " outputs as a whole are within tolerance"
)
NOT_FINITE: Final = (
    "not finite: too few finite elements are wrong to be compared with known faults, and NaN or"
    " infinity in the same places is no likeness"
)
PARTS: Final = {NOT_FINITE: (by_places, ""), WITHIN: (by_elements, SMALL)}
"""By why outputs as a whole cannot be compared: what else is compared, and the note on it."""
MANY: Final = 16
"""Wrong elements from which on a poor match is named. Of some 200 suspects one comes near two
elements by chance: states of another head were taken for gates off by ln 10, but for 16 % of the
error, and left 87 % of it in a case of 48 x 32."""
REPEATING: Final = 1 / 8
"""Of the time, at most, for equal calls."""
SHOWN: Final = 5
FORM: Final = "not compared with known bugs, since the message names the cause"
UNKNOWN: Final = "there is no catalogue of known bugs of this operator to compare it with"
LARGE: Final = "too large to be compared with every known fault"


def diagnose(
    adapter: Adapter,
    question: PropertyCase,
    *,
    seconds: float = DIAGNOSIS_SECONDS,
    shrinks: bool = True,
) -> Diagnosis:
    """The cause of a kernel's failure of one test.

    Args:
        adapter: the kernel.
        seconds: half of them to find a smaller case, the rest, and at least a quarter, to compare
            suspects; a step in progress completes.
        shrinks: whether a smaller case is looked for.
    """
    started = time.monotonic()
    varies = examined(
        question, adapter, calls=started + seconds * REPEATING, until=started + seconds
    )
    if varies is not None and varies.alone:
        return Diagnosis(question, silent=varies.said)
    failed = failure(adapter, question)
    if failed is None:
        return Diagnosis(question, silent=NOTHING, passes=True)
    smallest = question
    if shrinks and adapter.open_ended and not failed[1].takes_process:
        smallest = minimise(adapter, question, until=started + seconds / 2, failed=failed)
    found = _cause(adapter, question, smallest, failed, until=started + seconds, least=seconds / 4)
    named = failed[1].takes_process or failed[1].names_cause
    stage = None if named else wrong_stage(adapter, found, question)
    return replace(found, stage=stage, race="" if varies is None else varies.said)


def _cause(
    adapter: Adapter,
    question: PropertyCase,
    smallest: PropertyCase,
    failed: Failure,
    *,
    until: float,
    least: float,
) -> Diagnosis:
    if failed[1].names_cause:
        # Outputs that are right but for their form are as near to any bug that leaves them right.
        return Diagnosis(smallest, silent=FORM)
    if not operator_of(question.problem).has_known_bugs:
        return Diagnosis(smallest, silent=UNKNOWN)
    try:
        small, first = as_called(smallest, adapter), as_called(question, adapter)
        found = _compared(adapter, small, first, failed, until=until, least=least)
        explained = _explained(adapter, (first, small), found, until=until, least=least)
        return replace(found, smallest=smallest, explained=explained)
    except (ContractOverflow, UncertifiedError) as reason:
        return Diagnosis(smallest, silent=f"nothing to measure by: {reason}")


def _explained(
    adapter: Adapter,
    tried: tuple[PropertyCase, PropertyCase],
    found: Diagnosis,
    *,
    until: float,
    least: float,
) -> str:
    """Nothing where memory that was never written accounts for everything. The smallest case has
    the simplest regimes: where gates of exp(-100) left nothing to distinguish, a halved write was
    singled out there alone.
    """
    if found.unwritten or not adapter.open_ended:
        return ""
    first, smallest = tried
    operator = operator_of(first.problem)
    said = operator.explain_error(first, adapter, until=max(until, time.monotonic() + least))
    vague = not said or said.startswith(CONSISTENT)
    if not vague or smallest == first:
        return said
    # Suspects take all the time of a kind, and an analysis of a small case about a second.
    simpler = operator.explain_error(smallest, adapter, until=max(until, time.monotonic() + least))
    if not simpler or simpler.startswith(CONSISTENT):
        return said
    return f"{simpler}, of the smallest case"


def _compared(
    adapter: Adapter,
    smallest: PropertyCase,
    question: PropertyCase,
    failed: Failure,
    *,
    until: float,
    least: float,
) -> Diagnosis:
    if failed[1].takes_process:
        return Diagnosis(
            smallest, silent=f"{failed[1]}: it returned nothing that could be compared"
        )
    tested = [
        x
        for x, _ in groupby([smallest, question])
        if operator_of(x.problem).cost(x.problem) <= LARGEST
    ]
    found = Diagnosis(smallest, silent=LARGE)
    for one in tested:
        lineup = FaultComparison(one, adapter)
        varies = race(lineup.bench, adapter, until=time.monotonic() + least * REPEATING)
        lineup.kernel = lineup.kernel if varies is None else varies.usual
        memory = lineup.unwritten
        if memory:
            return Diagnosis(smallest, unwritten=memory, where=_where(adapter, lineup, question, 1))
        silent = _silent(lineup, one)
        if silent:
            found = replace(found, silent=silent)
        else:
            found = _named(adapter, lineup, smallest, question, until=until, least=least)
        if found.fits or time.monotonic() > until:
            break
    return _by_parts(
        adapter, found, (tested or [question])[-1], until=max(until, time.monotonic() + least)
    )


def _by_parts(
    adapter: Adapter, found: Diagnosis, question: PropertyCase, *, until: float
) -> Diagnosis:
    """Where outputs as a whole show nothing: who is not finite in the same places on other inputs
    too; who has the same errors in the elements whose error is clear.
    """
    if found.silent not in PARTS or not adapter.open_ended:
        return found
    compared, how = PARTS[found.silent]
    matches = compared(adapter, question, until=until)
    if not matches:
        return found
    size = adapter.operator.chunk_size(declared(question, adapter))
    return replace(
        found,
        silent="",
        named=tuple(match for match in matches if match.suspect.known),
        signatures=tuple(match for match in matches if not match.suspect.known),
        chunk_size=size,
        how=how,
    )


def _silent(lineup: FaultComparison, question: PropertyCase) -> str:
    """Why known faults cannot be compared with the kernel; "" if they can."""
    if not lineup.wrong:
        return OF_RULE if is_about_sizes(question) else WITHIN
    return "" if lineup.comparable else NOT_FINITE


def _named(
    adapter: Adapter,
    lineup: FaultComparison,
    smallest: PropertyCase,
    first: PropertyCase,
    *,
    until: float,
    least: float,
) -> Diagnosis:
    size = adapter.operator.chunk_size(declared(lineup.question, adapter))
    matches = list[Match]()
    fits = list[Match]()
    for group in suspects(lineup.question, adapter):
        matches += lineup.matches(group)
        fits = [match for match in matches if match.indistinguishable]
        if fits or time.monotonic() > until:
            break
    kept, unexplained = _elsewhere(
        adapter, first if lineup.question == smallest else smallest, lineup, fits
    )
    if adapter.open_ended:
        left = separate(adapter, first, kept, until=max(until, time.monotonic() + least))
    else:
        left = tuple(kept)
    poor = not fits and wrong_elements(lineup.kernel, lineup.scales) < MANY
    others = [] if poor else [match for match in matches if not match.indistinguishable]
    return Diagnosis(
        smallest,
        named=tuple(match for match in left if match.suspect.known),
        signatures=tuple(match for match in left if not match.suspect.known),
        ranked=tuple(sorted(matches, key=lambda match: match.fit.distance)[:SHOWN]),
        nearest=min(others, key=lambda match: match.fit.distance, default=None),
        chunk_size=(
            size if size > 1 else next((match.suspect.chunk_size for match in matches), size)
        ),
        unexplained=unexplained,
        where=_where(adapter, lineup, first, size),
    )


def _elsewhere(
    adapter: Adapter, other: PropertyCase, lineup: FaultComparison, fits: list[Match]
) -> tuple[list[Match], float]:
    """Those that also fit the other case, and 0; or all, and the share of error they leave."""
    if (
        not fits
        or other == lineup.question
        or operator_of(other.problem).cost(other.problem) > LARGEST
    ):
        return fits, 0.0
    there = FaultComparison(other, adapter)
    if not there.comparable:
        return fits, 0.0
    found = {match.suspect: there.match(match.suspect).fit for match in fits}
    kept = [match for match in fits if found[match.suspect].noise <= 1]
    return (kept, 0.0) if kept else (fits, min(reported.distance for reported in found.values()))


def _where(adapter: Adapter, lineup: FaultComparison, first: PropertyCase, chunk_size: int) -> str:
    """In the case before minimisation: it has more tokens and heads to distinguish."""
    operator = operator_of(first.problem)
    if not operator.staged or operator.cost(first.problem) > LARGEST:
        return ""
    shown = lineup if first == lineup.question else FaultComparison(first, adapter)
    return traces(shown.kernel, shown.scales, first.problem, max(chunk_size, 1))


def wrong_stage(adapter: Adapter, found: Diagnosis, first: PropertyCase) -> Location | None:
    """The stage of the known bug that matches; else the one that the outputs themselves point to,
    of the smallest case before the first; None where they point to none, or nothing fails.

    Args:
        found: the diagnosis.
        first: the case before it was made smaller.
    """
    if not operator_of(first.problem).hidden_stages or found.passes:
        return None
    if found.fits and found.named:
        fault = found.named[0].suspect.fault
        return Location(fault.stage, f"that of {fault.id}, which matches")
    if not adapter.open_ended:
        return None
    cases = dict.fromkeys((found.smallest.problem, first.problem))
    each = (_by_itself(PropertyCase(first.property, x, first.detail), adapter) for x in cases)
    return next((stage for stage in each if stage is not None), None)


def _by_itself(case: PropertyCase, adapter: Adapter) -> Location | None:
    try:
        outcomes = check(case.property, adapter, case.problem, case.detail)
        wrong = frozenset(outcome.output for outcome in outcomes if outcome.status.rejects)
        found = operator_of(case.problem).traced(case, adapter, wrong)
    except (ContractOverflow, UncertifiedError, ValueError):
        return None
    return None if found is None else Location(found.stage, f"by outputs alone: {found.reported}")
