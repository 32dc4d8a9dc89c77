"""Mistakes that show in nothing but NaN and infinity: named by where these are, on several inputs.

On one input unrelated mistakes share the places of NaN, and an output that is not finite anywhere
has none. Where the first non-finite row moves with the gates, the lengths and the seed, only the
same mistake moves alike.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.fault_comparison import FaultComparison, Match
from kdaverify.diagnosis.question import PropertyCase, bench
from kdaverify.diagnosis.suspects import suspects
from kdaverify.diagnosis.tolerances import FAR, Fit, fit
from kdaverify.operator import operator_of
from oracles.certified import UncertifiedError

ENOUGH: Final = 3
"""Inputs that a mistake must have the same places on."""
LEAST: Final = 2
"""Of them at least, where fewer show anything."""


def by_places(judged: Adapter, first: PropertyCase, *, until: float) -> list[Match]:
    """Known mistakes with the same finite elements and values on every input tried.

    Args:
        first: the test that failed.
        until: of the monotonic clock; what is begun is ended.
    """
    if not judged.open_ended:
        return []
    shown = list[FaultComparison]()
    for lineup in _comparisons(judged, first):
        shown.append(lineup)
        if len(shown) == ENOUGH or (len(shown) >= LEAST and time.monotonic() > until):
            break
    if len(shown) < LEAST:
        return []
    left = [Match(suspect, FAR) for suspect in next(suspects(first, judged))]
    # All mistakes are run on the first alone: the least expensive.
    for lineup in sorted(shown, key=_size):
        left = [match for match in (_same(lineup, old) for old in left) if match is not None]
    return left


def _comparisons(judged: Adapter, first: PropertyCase) -> Iterator[FaultComparison]:
    """Of inputs with some finite and some other elements; others need no exact values."""
    for case in (first, *operator_of(first.problem).varied(first)):
        if operator_of(case.problem).refusal(judged, case.problem) is not None:
            continue
        try:
            if _reports(bench(case, judged).answer(judged)):
                yield FaultComparison(case, judged)
        except (ContractOverflow, UncertifiedError, ValueError):
            continue


def _size(lineup: FaultComparison) -> float:
    return operator_of(lineup.question.problem).cost(lineup.question.problem)


def _reports(kernel: KernelErrors) -> bool:
    """Whether some elements are finite and some are not."""
    finite = [tensor.isfinite() for tensor in kernel.outputs.values() if tensor.numel()]
    return any(bool(x.any()) for x in finite) and not all(bool(x.all()) for x in finite)


def _same(lineup: FaultComparison, old: Match) -> Match | None:
    """The match with what this input adds to it; None where the mistake is another."""
    answer = lineup.answer(old.suspect)
    found = fit(lineup.kernel, answer, lineup.scales)
    if found.noise > 1:
        return None
    before = 0.0 if old.fit is FAR else old.fit.noise
    return replace(old, fit=Fit(0.0, max(found.noise, before)))
