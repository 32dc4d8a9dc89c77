"""Further cases of the kind of a failing one, under other regimes, sizes and lengths, so that
suspects that agree on one input can be separated.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any, Final

from kdaverify.checks.property_table import PROPERTIES
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.problems import Problem

_SIZES: Final[tuple[dict[str, Any], ...]] = (
    {"HV": 4, "H": 2, "K": 8, "V": 8},
    {"HV": 2, "H": 1, "K": 4, "V": 8},
    {"HV": 2, "H": 2, "K": 8, "V": 4},
)
_LENGTHS: Final[tuple[int, ...]] = (70, 150, 20)
_PACKS: Final[tuple[tuple[int, ...], ...]] = ((70, 5, 0, 65), (3, 20), (40,))
_PADDING: Final = 7
_REGIMES: Final[tuple[dict[str, str], ...]] = (
    {},  # those of the failing case: what shows in strong gates alone is in no other
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


def varied(first: PropertyCase, problem: Problem) -> Iterator[PropertyCase]:
    """Cases of the same kind; packs and dense forwards where there is no other way.

    Args:
        problem: that of the first question.
    """
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
