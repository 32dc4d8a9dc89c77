"""Results that differ between runs of the same inputs: how often, where, which races fit.

A fault that strikes at random cannot be compared call by call. Each of its wrong results can: it is
one of the few that the same race gives when it is run often enough on the same inputs.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.question import DiagnosisCase, PropertyCase, bench
from kdaverify.diagnosis.suspects import Suspect, declared, races
from kdaverify.diagnosis.tolerances import APART, Tolerances, fit
from kdaverify.diagnosis.traces import traces
from kdaverify.diagnosis.words import DIFFERS, NONFINITE_AS, OR, SAME_AS
from kdaverify.operator import operator_of
from oracles.certified import UncertifiedError

RUNS: Final = 24
"""Calls of a kernel: a race that strikes one in eight is missed in 4 %."""
LEAST: Final = 8
"""Calls of a kernel whose results differ, where the time is over: of two different results neither
is the usual one."""
EXTRA: Final = 1.0
"""Seconds for them at most: of a long sequence each takes two."""
TRIED: Final = 64
"""Calls of a known race: those of the catalogue strike one call in four, in one of up to eight
places, so that a given wrong result is missed in 13 %."""
LOOKED_AT: Final = 3
"""Wrong results that known races are compared with."""
SHARE: Final = 0.25
"""Largest share of the error of a wrong result that a known race may leave unexplained."""


@dataclass(frozen=True)
class Race:
    """Different results of equal calls.

    Args:
        results: the most frequent first, each with the number of calls that gave it.
        said: how often, where, and which known race gives the same, in words.
        alone: whether nothing beside a race is wrong: the most frequent result is within tolerance,
            or a known race gives it.
    """

    results: tuple[tuple[KernelErrors, int], ...]
    said: str = ""
    alone: bool = False

    @property
    def usual(self) -> KernelErrors:
        """The most frequent result."""
        return self.results[0][0]

    @property
    def outputs(self) -> tuple[str, ...]:
        """Those that differ; all of them where some calls fail."""
        answers = [result for result, _ in self.results]
        whole = [answer for answer in answers if answer.failed is None]
        names = next((tuple(answer.outputs) for answer in whole), ("call",))
        if len(whole) < len(answers):
            return names
        own = [[KernelErrors({n: answer.outputs[n]}) for answer in whole] for n in names]
        return tuple(
            name
            for name, (first, *others) in zip(names, own, strict=True)
            if not all(first.near(other) for other in others)
        )

    @property
    def counts(self) -> str:
        """How often, in words."""
        runs = sum(times for _, times in self.results)
        if len(self.results) == runs:
            return f"{DIFFERS}: {runs} calls gave {runs} different results"
        other = runs - self.results[0][1]
        return f"{DIFFERS}: {other} of {runs} calls differ from the most frequent result"


def race(tested: DiagnosisCase, judged: Adapter, *, until: float) -> Race | None:
    """The results of equal calls; None where all are the same but for roundings.

    Args:
        until: of the monotonic clock; two calls are made at least, more where they differ.
    """
    firsts, times = list[KernelErrors](), list[int]()
    for number in range(RUNS):
        ends = until + EXTRA if len(firsts) > 1 and number < LEAST else until
        if number > 1 and time.monotonic() > ends:
            break
        own = tested.answer(judged)
        place = next((n for n, first in enumerate(firsts) if first.near(own)), len(firsts))
        if place == len(firsts):
            firsts.append(own)
            times.append(0)
        times[place] += 1
    ranked = sorted(zip(firsts, times, strict=True), key=lambda result: -result[1])
    return Race(tuple(ranked)) if len(ranked) > 1 else None


def differing(question: PropertyCase, judged: Adapter) -> tuple[str, ...]:
    """The outputs that differ between equal calls by more than their roundings."""
    if not operator_of(question.problem).has_known_bugs:
        return ()
    found = race(bench(question, judged), judged, until=float("inf"))
    return () if found is None else found.outputs


def wrong(result: KernelErrors, scales: Tolerances) -> bool:
    """Whether any output of a result is over its tolerance."""
    exact = {name: scale.exact for name, scale in scales.items() if name in result.outputs}
    return result.failed is not None or fit(result, KernelErrors(exact), scales).noise * APART > 1


def examined(question: PropertyCase, judged: Adapter, *, calls: float, until: float) -> Race | None:
    """The different results of equal calls, in words too; None where there are none.

    Args:
        calls: of the monotonic clock; calls that come later are not made.
        until: the same, of known races.
    """
    if not operator_of(question.problem).has_known_bugs:
        return None
    tested = bench(question, judged)
    found = race(tested, judged, until=calls)
    if found is None:
        return None
    try:
        looked_at = _Results(question, judged, tested, tested.tolerances(), found)
    except (ContractOverflow, UncertifiedError):
        return replace(found, said=found.counts)
    now = time.monotonic()
    # A second bug, if there is one, is looked for in the rest of the time.
    known = looked_at.known(until if looked_at.right else now + (until - now) / 2)
    said = "; ".join(filter(None, (found.counts, known, looked_at.where)))
    return replace(found, said=said, alone=looked_at.right or bool(known))


@dataclass(frozen=True)
class _Results:
    """Different results of equal calls, beside the exact one."""

    question: PropertyCase
    judged: Adapter
    tested: DiagnosisCase
    scales: Tolerances
    found: Race

    @property
    def right(self) -> bool:
        return not wrong(self.found.usual, self.scales)

    @property
    def wrong(self) -> list[KernelErrors]:
        """Results that are wrong."""
        return [result for result, _ in self.found.results if wrong(result, self.scales)]

    @property
    def where(self) -> str:
        """What part of the outputs differs from the most frequent result."""
        usual, others = self.found.usual, [result for result, _ in self.found.results[1:]]
        other = next((result for result in others if wrong(result, self.scales)), others[0])
        if not operator_of(self.question.problem).staged or other.failed is not usual.failed:
            return ""
        scales = {
            name: replace(scale, exact=usual.outputs[name])
            for name, scale in self.scales.items()
            if name in usual.outputs
        }
        size = max(self.judged.operator.chunk_size(declared(self.question, self.judged)), 1)
        return traces(other, scales, self.question.problem, size)

    def known(self, until: float) -> str:
        """The known races that give most of the wrong results, too.

        Of those where the most frequent result is wrong, too, a race that strikes on every call
        gives them; another beside a second bug, which is in all of them, gives none.
        """
        given = dict[str, tuple[int, int]]()
        suspects = races(self.question, self.judged) if self.wrong else ()
        for suspect in sorted(suspects, key=self._unlike):
            if time.monotonic() > until:
                break
            given[str(suspect)] = self._given(suspect)
        for place, words in enumerate((SAME_AS, NONFINITE_AS)):
            most = max((counts[place] for counts in given.values()), default=0)
            named = [name for name, counts in given.items() if counts[place] == most]
            if most:
                return f"{words}{OR.join(named)}"
        return ""

    def _unlike(self, suspect: Suspect) -> int:
        """Outputs that differ without a race, and the reverse: not all may have been run."""
        differ, returned = {*self.found.outputs}, {*self.found.usual.outputs}
        return len(differ ^ ({*suspect.fault.outputs} & returned))

    def _given(self, suspect: Suspect) -> tuple[int, int]:
        """How many wrong results a known race gives; how many by NaN or infinity alone."""
        contract, left, struck = declared(self.question, self.judged), self.wrong[:LOOKED_AT], False
        counts = [0, 0]
        for number, run in enumerate(_runs(suspect)):
            if not left or (number == RUNS and not struck):
                break
            answer = self.tested.answer(run.adapter(contract))
            if not wrong(answer, self.scales):
                continue
            struck = True
            for result in [*left]:
                found = fit(result, answer, self.scales)
                if found.noise <= 1 and (found.distance <= SHARE or not isfinite(found.distance)):
                    counts[not isfinite(found.distance)] += 1
                    left = [other for other in left if other is not result]
        return counts[0], counts[1]


def _runs(suspect: Suspect) -> Iterator[Suspect]:
    """One suspect many times: a random fault is seeded by its name."""
    for number in range(TRIED):
        yield replace(suspect, fault=replace(suspect.fault, id=f"{suspect.fault.id} {number}"))
