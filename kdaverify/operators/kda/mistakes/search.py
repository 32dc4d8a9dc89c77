"""Simple mistakes beside a wrong kernel: on one case, and the sieve of several."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import Final

from kdaverify.diagnosis.answer import KernelErrors
from kdaverify.diagnosis.fault_comparison import SHARE
from kdaverify.diagnosis.likeness import Likeness, likenesses, wrong_elements
from kdaverify.diagnosis.tolerances import Tolerances
from kdaverify.operators.kda.mistakes.changes import AS_IT_IS, changes
from kdaverify.operators.kda.mistakes.copies import Mistake, ObservedPass, outcomes
from kdaverify.operators.kda.mistakes.places import FORWARD_PLACES
from kdaverify.operators.kda.mistakes.places_backward import BACKWARD_PLACES

RIVAL: Final = 2.0
"""A mistake within so many times of what conforming kernels differ by is not ruled out; one within
1 accounts for the error."""


@dataclass(frozen=True)
class Scored:
    """A mistake, and how near it comes; over several cases the worst of each figure."""

    mistake: Mistake
    like: Likeness

    @property
    def possible(self) -> bool:
        """Whether it is not ruled out."""
        return self.like.noise <= RIVAL and self.like.residual <= SHARE

    @property
    def fits(self) -> bool:
        """Whether it accounts for everything that is wrong."""
        return self.possible and self.like.noise <= 1.0


@dataclass(frozen=True)
class ObservedCase:
    """What a kernel gave for one case.

    Args:
        of: the call, or its gradients.
        kernel: its outputs.
        scales: what is right, and how far conforming kernels may lie from it.
    """

    of: ObservedPass
    kernel: KernelErrors
    scales: Tolerances

    @cached_property
    def finite(self) -> bool:
        """Whether all outputs are; only then can they be compared with those of mistakes."""
        return all(bool(x.isfinite().all()) for x in self.kernel.outputs.values())

    @cached_property
    def wrong(self) -> int:
        """Elements that no conforming kernel has."""
        return wrong_elements(self.kernel, self.scales)

    def beside(
        self,
        mistakes: Iterable[Mistake],
        *,
        base: tuple[Mistake, ...] = (),
        until: float = math.inf,
    ) -> list[Scored]:
        """Each mistake added to those of `base`, and how near it comes, within `until`."""
        of, found = replace(self.of, base=base), list[Scored]()
        for place, group in groupby(mistakes, key=lambda mistake: mistake.place):
            if time.monotonic() > until:
                break
            own = list(group)
            likes = likenesses(
                self.kernel, outcomes(of, place, [mistake.change for mistake in own]), self.scales
            )
            found += map(Scored, own, likes)
        # Where nothing is wrong there is no error to account for: what counts is that the mistake
        # does not show.
        if self.wrong:
            return found
        return [Scored(x.mistake, replace(x.like, residual=0.0)) for x in found]


def all_mistakes(*, backward: bool) -> Sequence[Mistake]:
    """Those of one pass, place by place, the simplest first."""
    places = BACKWARD_PLACES if backward else FORWARD_PLACES
    return [
        Mistake(place, change)
        for place in places
        for change in ([AS_IT_IS] if place.as_it_is else changes(place.kind))
    ]


def sieved(
    cases: Sequence[ObservedCase], mistakes: Sequence[Mistake], *, base: tuple[Mistake, ...] = ()
) -> list[Scored]:
    """The mistakes that no case rules out."""
    left = [Scored(mistake, Likeness(0.0, 0.0, 0.0)) for mistake in mistakes]
    for case in cases:
        here = case.beside([x.mistake for x in left], base=base)
        left = [
            Scored(now.mistake, _worse(x.like, now.like))
            for x, now in zip(left, here, strict=True)
            if now.possible
        ]
    return left


def _worse(a: Likeness, b: Likeness) -> Likeness:
    return Likeness(max(a.residual, b.residual), max(a.noise, b.noise), max(a.mixed, b.mixed))
