"""What the error of a kernel says, in a sentence: a mistake, two, or the tensor that must be wrong."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from kdaverify.adapters.base import Adapter
from kdaverify.checks.property_table import PROPERTIES
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.operators.kda.mistakes.cases import cases
from kdaverify.operators.kda.mistakes.explanation import Explanation, double, single
from kdaverify.operators.kda.mistakes.origin import Origin, narrowed, origins
from kdaverify.operators.kda.mistakes.search import ObservedCase, all_mistakes
from oracles.stages import SIGNATURES

PLAIN: Final = ("forward", "gradients")
"""Properties whose outputs are those of one call."""
COLUMNS: Final = 11
"""Value columns that a tensor is looked for in."""
FAMILIES: Final = 2
"""Tensors that are named side by side."""


@dataclass(frozen=True)
class Finding:
    """What the outputs single out.

    Args:
        explanation: mistakes that account for everything; None where none is singled out.
        possible: else the tensors, one of which can be changed so that everything is accounted for, the fewest unknowns first.
        excluded: stages in which no tensor can.
    """

    explanation: Explanation | None = None
    possible: tuple[Origin, ...] = ()
    excluded: tuple[str, ...] = ()

    @property
    def stages(self) -> tuple[str, ...]:
        """Those that are named, in the order in which they are."""
        if self.explanation is not None:
            return self.explanation.stages
        return tuple(dict.fromkeys(stage for origin in self.possible for stage in origin.place.stages))

    def __str__(self) -> str:
        """One clause; empty where nothing is singled out."""
        if self.explanation is not None:
            return _explained(self.explanation)
        return _located(self.possible, self.excluded) if self.possible else ""


def finding(question: PropertyCase, judged: Adapter, *, until: float) -> Finding:
    """What is wrong with a kernel, from its outputs alone.

    Args:
        question: what failed; anything but a plain call or its gradients says nothing.
        until: of the monotonic clock; what is begun is ended.
    """
    if question.property not in PLAIN:
        return Finding()
    found = sorted(cases(question, judged), key=lambda case: not case.wrong)
    if not found or not found[0].wrong:
        return Finding()
    every = all_mistakes(backward=PROPERTIES[question.property].backward)
    scored = found[0].beside(every)
    explained = single(found, scored)
    if explained is None and time.monotonic() < until:
        explained = double(found, scored, every)
    if explained is not None and len(explained.others) < FAMILIES:
        return Finding(explained)
    return _origins(found, until)


def _origins(found: Sequence[ObservedCase], until: float) -> Finding:
    """Of the first wrong case of one sequence and one chunk."""
    case = next((case for case in found if case.wrong and case.of.call.N == 1 and case.of.chunk_size > case.of.call.T), None)
    if case is None:
        return Finding()
    tried = [*origins(narrowed(case, COLUMNS), until=until)]
    possible = [origin for origin in tried if origin.possible]
    telling = sorted((origin for origin in possible if origin.telling), key=lambda origin: origin.unknowns)
    within = {stage for origin in possible for stage in origin.place.stages}
    excluded = tuple(stage for stage in SIGNATURES if stage not in within) if time.monotonic() < until else ()
    first = [next(own) for _, own in groupby(sorted(telling, key=lambda x: (x.unknowns, x.place.said)), key=lambda x: x.place)]
    distinct = list({origin.place.said: origin for origin in reversed(first)}.values())[::-1]
    fewest = [origin for origin in distinct if origin.unknowns <= 2 * distinct[0].unknowns]
    return Finding(possible=tuple(fewest), excluded=excluded) if 0 < len(fewest) <= FAMILIES else Finding()


def _explained(found: Explanation) -> str:
    several = "two mistakes together: " if len(found.mistakes) > 1 else ""
    names = [" and ".join(map(str, mistakes)) for mistakes in (found.mistakes, *found.others)]
    nearest = f", the next leaves {_percent(found.next)}" if math.isfinite(found.next) and not several else ""
    return f"{several}{'; or '.join(names)} (leaves {_percent(found.residual)} of the error{nearest})"


def _located(possible: Sequence[Origin], excluded: Sequence[str]) -> str:
    names = " or of ".join(f"{origin.place.said} ({_how(origin)}stage {' or '.join(origin.place.stages)})" for origin in possible)
    counts = f"{possible[0].unknowns} unknowns account for {possible[0].equations} outputs of a head"
    out = f"; excluded: {', '.join(excluded)}" if excluded else ""
    return f"consistent with an error of {names} alone: {counts}{out}"


def _how(origin: Origin) -> str:
    return f"{origin.space.said}, " if origin.space.said else ""


def _percent(share: float) -> str:
    return "under 0.1 %" if share < 1e-3 else f"{100 * share:.2g} %"
