"""Separates suspects that agree on one input, by further inputs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import combinations, cycle
from typing import Any, Final

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.budgets.statistics import rms
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.fault_comparison import FaultComparison, Match
from kdaverify.diagnosis.question import PropertyCase, bench
from kdaverify.diagnosis.suspects import declared
from kdaverify.problems import Problem
from oracles.certified import UncertifiedError

VISIBLE: Final = 2.0**-5
"""Answers that differ by this share of themselves are worth a question to the kernel."""
_SIZES: Final[tuple[dict[str, Any], ...]] = (
    {"HV": 4, "H": 2, "K": 8, "V": 8},
    {"HV": 2, "H": 1, "K": 4, "V": 8},
    {"HV": 2, "H": 2, "K": 8, "V": 4},
)
_LENGTHS: Final[tuple[int, ...]] = (70, 150, 20)
_PACKS: Final[tuple[tuple[int, ...], ...]] = ((70, 5, 0, 65), (3, 20), (40,))
_PADDING: Final = 7
_REGIMES: Final[tuple[dict[str, str], ...]] = (
    {"gate": "mild", "key": "random", "beta": "uniform", "state": "random", "value": "normal"},
    {"gate": "bound-5", "key": "random", "beta": "uniform", "state": "random", "value": "normal"},
    {
        "gate": "spread",
        "key": "coherent-0.6",
        "beta": "near-one",
        "state": "absent",
        "value": "normal",
    },
    {"gate": "bound-20", "key": "random", "beta": "uniform", "state": "absent", "value": "normal"},
    {
        "gate": "mixed",
        "key": "coherent-0.9",
        "beta": "mixed",
        "state": "asymmetric",
        "value": "normal",
    },
    {"gate": "log-sigmoid", "key": "one-hot", "beta": "one", "state": "random", "value": "normal"},
    {"gate": "half-zero", "key": "random", "beta": "uniform", "state": "random", "value": "normal"},
)


def separate(
    judged: Adapter, first: PropertyCase, fits: Sequence[Match], *, until: float
) -> tuple[Match, ...]:
    """The suspects that answer as the kernel does on other inputs too; all of them, if none does.

    Args:
        first: the test before minimisation; the others are of its kind.
        until: of the monotonic clock.
    """
    left = tuple(fits)
    for other in varied(first):
        if len(left) < 2 or time.monotonic() > until:  # nothing to tell apart
            break
        left = _reported_apart(judged, other, left) or left
    return left


def _reported_apart(
    judged: Adapter, other: PropertyCase, fits: tuple[Match, ...]
) -> tuple[Match, ...]:
    if isinstance(other.problem, Problem) and judged.supports(other.problem) is not None:
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


def varied(first: PropertyCase) -> Iterator[PropertyCase]:
    """Questions of the same kind, and where the property has no way of its own, packs and dense
    runs of the forward.
    """
    problem = first.problem
    if not isinstance(problem, Problem):
        yield from (
            PropertyCase(first.property, problem.replace(seed=problem.seed + n), first.detail)
            for n in (1, 2)
        )
        return
    if PROPERTIES[first.property].backward:
        yield PropertyCase("forward", problem)
    for i, (regimes, sizes) in enumerate(zip(_REGIMES, cycle(_SIZES))):
        changed: dict[str, Any] = {**regimes, **sizes, "seed": problem.seed + i + 1}
        if "cut" in first.detail:
            yield PropertyCase(first.property, problem.replace(**changed), first.detail)
            continue
        pack, T = _PACKS[i % len(_PACKS)], _LENGTHS[i % len(_LENGTHS)]
        packed = problem.replace(**changed, B=1, lengths=pack, T=sum(pack) + _PADDING * (i % 2))
        dense = problem.replace(**changed, B=1 + i % 2, lengths=None, T=T)
        mine, other = (packed, dense) if problem.packed else (dense, packed)
        yield PropertyCase(first.property, mine, first.detail)
        if first.property != "packing":
            yield PropertyCase(first.property, other, first.detail)
