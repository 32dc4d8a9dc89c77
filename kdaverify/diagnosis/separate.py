"""Separates suspects that agree on one input, by further inputs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import combinations
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.budgets.statistics import rms
from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.fault_comparison import FaultComparison, Match
from kdaverify.diagnosis.question import PropertyCase, bench
from kdaverify.diagnosis.suspects import declared
from kdaverify.operator import operator_of
from oracles.certified import UncertifiedError

VISIBLE: Final = 2.0**-5
"""Answers that differ by this share of themselves are worth a call of the kernel."""


def separate(
    judged: Adapter, first: PropertyCase, fits: Sequence[Match], *, until: float
) -> tuple[Match, ...]:
    """The suspects that answer as the kernel does on other inputs too; all of them, if none does.

    Args:
        first: the test before minimisation; the others are of its kind.
        until: of the monotonic clock.
    """
    left = tuple(fits)
    for other in operator_of(first.problem).varied(first):
        if len(left) < 2 or time.monotonic() > until:  # nothing to distinguish
            break
        left = _reported_apart(judged, other, left) or left
    return left


def _reported_apart(
    judged: Adapter, other: PropertyCase, fits: tuple[Match, ...]
) -> tuple[Match, ...]:
    if operator_of(other.problem).refusal(judged, other.problem) is not None:
        return fits
    bed, contract = bench(other, judged), declared(other, judged)
    answers = [bed.answer(match.suspect.adapter(contract)) for match in fits]
    if not any(_differ(a, b) for a, b in combinations(answers, 2)):
        return fits
    try:
        lineup = FaultComparison(other, judged)
    except (ContractOverflow, UncertifiedError, ValueError):
        return fits
    return tuple(match for match in fits if lineup.match(match.suspect).fit.noise <= 1)


def _differ(a: KernelErrors, b: KernelErrors) -> bool:
    if a.failed is not b.failed or a.outputs.keys() != b.outputs.keys():
        return True
    pairs = [(a.outputs[name], b.outputs[name]) for name in a.outputs]
    return any(
        bool((x.isfinite() ^ y.isfinite()).any())
        or rms((x - y).nan_to_num()) > VISIBLE * rms(y.nan_to_num())
        for x, y in pairs
    )
