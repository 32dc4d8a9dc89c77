"""Whether what explains one failure of a call explains the others too: a second bug that strikes
elsewhere in the same outputs must not vanish behind the first.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.diagnosis.diagnosis import Diagnosis
from kdaverify.diagnosis.fault_comparison import FaultComparison
from kdaverify.diagnosis.question import PropertyCase, as_called
from kdaverify.diagnosis.words import FURTHER
from kdaverify.operator import operator_of
from oracles.certified import UncertifiedError

TESTED: Final = 32
"""Failing cases that are compared, at most."""
LARGEST: Final = 0.2
"""Largest `cost` of a problem that is compared: then a case takes some 0.07 s."""
SECONDS: Final = 1.0
"""For all of them: of two bugs, the second was in one of five to ten cases."""
CLEAR: Final = 0.05
"""Least share of an error that has to be left: less may be another rounding of the same bug.
Measured: a second bug leaves 0.99 and more, one that explains a failure 0."""


@dataclass(frozen=True)
class Remainder:
    """Failures of a call that the bugs named for another one do not explain.

    Args:
        said: what they leave, in words; "" where nothing.
        smallest: the least expensive of these failures.
    """

    said: str = ""
    smallest: PropertyCase | None = None


def remainder(
    adapter: Adapter, found: Diagnosis, others: Sequence[PropertyCase], *, seconds: float = SECONDS
) -> Remainder:
    """What the named bugs leave of other failures of the same call.

    Args:
        others: failing cases of the call that was diagnosed.
        seconds: in all; what is begun is ended.
    """
    if not (found.fits and found.named) or found.race:
        return Remainder()
    until, apart, same = time.monotonic() + seconds, list[PropertyCase](), list[PropertyCase]()
    for case in unlike(found.smallest, others)[:TESTED]:
        if time.monotonic() > until:
            break
        share = share_left(adapter, found, as_called(case, adapter))
        if share is not None:
            (apart if share > CLEAR else same).append(case)
    if not apart:
        return Remainder()
    cost = operator_of(apart[0].problem).cost
    smallest = min(apart, key=lambda case: cost(case.problem))
    return Remainder(_in_words(found, apart, same, smallest), smallest)


def _in_words(
    found: Diagnosis, apart: list[PropertyCase], others: list[PropertyCase], smallest: PropertyCase
) -> str:
    names = " or ".join(match.suspect.fault.id for match in found.named)
    compared = f"{len(apart)} of {len(apart) + len(others)} failures that were compared"
    common = _common(apart, others)
    where = f", each with {common}" if common else ""
    such = smallest.problem.describe()
    return f"{FURTHER}{names} does not explain {compared}{where}, such as {such}"


def _common(apart: list[PropertyCase], others: list[PropertyCase]) -> str:
    """What all of these cases have and none of the others; "" where there is no such thing."""
    shared = set[str].intersection(*map(_traits, apart))
    return min(shared.difference(*map(_traits, others)), default="") if others else ""


def unlike(first: PropertyCase, others: Iterable[PropertyCase]) -> list[PropertyCase]:
    """Inexpensive cases in an order in which each has most traits that none before it has."""
    operator = operator_of(first.problem)
    left = {
        case.problem.to_json(): case
        for case in others
        if operator.cost(case.problem) <= LARGEST and case.problem != first.problem
    }
    seen, ordered = _traits(first), list[PropertyCase]()
    while left:
        name = min(
            left,
            key=lambda text: (-len(_traits(left[text]) - seen), operator.cost(left[text].problem)),
        )
        ordered.append(left.pop(name))
        seen |= _traits(ordered[-1])
    return ordered


def _traits(case: PropertyCase) -> set[str]:
    found = operator_of(case.problem).traits(case.problem)
    return {said for said, true in found.items() if true}


def share_left(adapter: Adapter, found: Diagnosis, case: PropertyCase) -> float | None:
    """The error's share that the nearest named bug leaves; None where not comparable."""
    try:
        lineup = FaultComparison(case, adapter)
        if not (lineup.wrong and lineup.comparable and lineup.repeats):
            return None
        fits = [lineup.match(match.suspect).fit for match in found.named]
    # A fault that matches a single sequence may raise on a pack.
    except (ContractOverflow, UncertifiedError, RuntimeError, ValueError):
        return None
    return 0.0 if any(fit.noise <= 1 for fit in fits) else min(fit.distance for fit in fits)
