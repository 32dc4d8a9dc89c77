"""The simple mistake, or the two together, that the wrong outputs of a kernel single out."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from torch import Tensor

from kdaverify.operators.kda.mistakes.copies import Mistake, outcomes
from kdaverify.operators.kda.mistakes.search import ObservedCase, Scored, sieved
from kdaverify.operators.kda.mistakes.wheres import WHERES, restricted

BITS: Final = 10.0
"""A mistake is named if one of all that were tried fits so well by chance with a probability below
2^-BITS."""
IN_PARTS: Final = 16
"""Mistakes, the nearest where each element may be right as well, that are tried in parts of a
call."""
FIRSTS: Final = 2
"""First mistakes of two, by each of two orders."""
SAME: Final = 1e-9
Mistakes = tuple[Mistake, ...]


@dataclass(frozen=True)
class Explanation:
    """What accounts for everything that is wrong in some cases.

    Args:
        mistakes: made together; more than one where no single one accounts for it.
        residual: the largest share of an error that they leave.
        others: what accounts for it as well, and is not the same.
        next: the share that the nearest mistake leaves that is ruled out.
    """

    mistakes: Mistakes
    residual: float
    others: tuple[Mistakes, ...] = ()
    next: float = math.inf

    @property
    def stages(self) -> tuple[str, ...]:
        """Those that it may be in."""
        return tuple(
            dict.fromkeys(stage for mistake in self.mistakes for stage in mistake.place.stages)
        )


def single(cases: Sequence[ObservedCase], scored: Sequence[Scored]) -> Explanation | None:
    """The one mistake that accounts for all cases and changes nothing elsewhere; or None.

    Args:
        cases: the first is wrong.
        scored: all mistakes beside the first, the simplest first.
    """
    possible = [found.mistake for found in scored if found.possible]
    nearest = [
        found.mistake for found in sorted(scored, key=lambda found: found.like.mixed)[:IN_PARTS]
    ]
    for tried, number in ((possible, 1), (_in_parts(possible or nearest), len(WHERES))):
        explained = _singled_out(cases, sieved(cases, tried), scored, tried=number * len(scored))
        if explained is not None:
            return explained
    return None


def double(
    cases: Sequence[ObservedCase],
    scored: Sequence[Scored],
    every: Sequence[Mistake],
    *,
    until: float,
) -> Explanation | None:
    """Two mistakes that account for it together; None where there are none.

    Args:
        until: of the monotonic clock; first mistakes that come later are left out.
    """
    found = list[Explanation]()
    for first in _firsts(scored):
        if time.monotonic() > until:
            break
        base = (first,)
        rest = next((case for case in cases if not case.beside(base)[0].fits), None)
        if rest is None:
            continue
        tried = rest.beside(every, base=base, until=until)
        if len(tried) < len(every):
            break
        second = [x.mistake for x in tried if x.possible]
        explained = _singled_out(
            cases, sieved(cases, second, base=base), scored, tried=len(every) ** 2, base=base
        )
        found += [explained] if explained is not None and _both_needed(cases, explained) else []
    return min(found, key=lambda x: (len(x.others), x.residual), default=None)


def _both_needed(cases: Sequence[ObservedCase], explained: Explanation) -> bool:
    return not any(
        all(case.beside((one,))[0].possible for case in cases) for one in explained.mistakes
    )


def _firsts(scored: Sequence[Scored]) -> Iterator[Mistake]:
    """Those that account for the first case alone, else the nearest."""
    by_residual = sorted(scored, key=lambda x: x.like.residual)[:FIRSTS]
    by_parts = sorted(scored, key=lambda x: x.like.mixed)[:FIRSTS]
    fits = [x for x in scored if x.fits][:1]
    yield from dict.fromkeys(x.mistake for x in fits or (*by_residual, *by_parts))


def _in_parts(mistakes: Sequence[Mistake]) -> list[Mistake]:
    return [
        made
        for mistake in mistakes
        for where in WHERES
        if (made := restricted(mistake, where)) is not None
    ]


def _singled_out(
    cases: Sequence[ObservedCase],
    left: Sequence[Scored],
    scored: Sequence[Scored],
    *,
    tried: float,
    base: Mistakes = (),
) -> Explanation | None:
    """The best of what is left, and what is left that differs from it.

    Math: one of n mistakes leaves a share r of w wrong elements by chance with a probability of
    about n r^w.
    """
    wrong = max(case.wrong for case in cases)
    fits = [
        x
        for x in left
        if x.fits and -wrong * math.log2(max(x.like.residual, 2.0**-52)) >= math.log2(tried) + BITS
    ]
    if not fits:
        return None
    best = min(fits, key=lambda x: x.like.residual)
    mine = _answers(cases, best.mistake, base)
    alike = [x for x in left if _alike(mine, _answers(cases, x.mistake, base))]
    others = _distinct(cases, [x.mistake for x in left if x not in alike], base)
    far = [x.like.residual for x in scored if not x.possible]
    simplest = (*base, alike[0].mistake)
    return Explanation(
        simplest,
        best.like.residual,
        tuple((*base, other) for other in others),
        min(far, default=math.inf),
    )


def _distinct(
    cases: Sequence[ObservedCase], mistakes: Sequence[Mistake], base: Mistakes
) -> list[Mistake]:
    found = list[tuple[Mistake, list[Mapping[str, Tensor]]]]()
    for mistake in mistakes:
        answers = _answers(cases, mistake, base)
        if not any(_alike(answers, other) for _, other in found):
            found.append((mistake, answers))
    return [mistake for mistake, _ in found]


def _answers(
    cases: Sequence[ObservedCase], mistake: Mistake, base: Mistakes
) -> list[Mapping[str, Tensor]]:
    return [
        outcomes(replace(case.of, base=base), mistake.place, [mistake.change]) for case in cases
    ]


def _alike(a: Sequence[Mapping[str, Tensor]], b: Sequence[Mapping[str, Tensor]]) -> bool:
    pairs = [(x[name], y[name]) for x, y in zip(a, b, strict=True) for name in x if x[name].numel()]
    return all(bool((x - y).abs().max() <= SAME * y.abs().max()) for x, y in pairs)
