"""A diagnosis in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kdaverify.checks.location import Location
from kdaverify.diagnosis.fault_comparison import SHARE, Match
from kdaverify.diagnosis.question import PropertyCase
from kdaverify.diagnosis.words import BRIEFLY, FITS, KNOWN, MORE, OR, RESIDUAL, SIMPLE

MOST_NAMED: Final = 4
NEAR: Final = 0.5
"""A suspect that leaves more than this of what is wrong unexplained is not worth a name."""


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with a kernel.

    Args:
        smallest: the smallest case that still fails.
        named: faults of the catalogue that match on every input, nearest first; or ().
        signatures: simple mistakes that fit as well.
        ranked: the nearest of all, on the input that they were compared on.
        nearest: the nearest of those that do not fit.
        unexplained: where they fit the smallest or the first case alone, the share of the error
            that they leave of the other; else 0.
        chunk_size: that the kernel declares; faults may fit in another one.
        where: what part of the outputs is wrong.
        unwritten: the wrong outputs whose whole error comes from unwritten memory.
        silent: why nothing was compared; "" where it was.
        explained: what the error singles out by itself, without known bugs; "" where nothing.
        how: of what the named ones were compared in, where not in all outputs; "" else.
        passes: whether nothing fails.
        stage: the first wrong one, of a kernel that exposes none; None if nothing shows it.
        race: that results differ between runs, in words; the rest is of the most frequent one.
    """

    smallest: PropertyCase
    named: tuple[Match, ...] = ()
    signatures: tuple[Match, ...] = ()
    ranked: tuple[Match, ...] = ()
    nearest: Match | None = None
    unexplained: float = 0.0
    chunk_size: int = 0
    where: str = ""
    unwritten: tuple[str, ...] = ()
    silent: str = ""
    explained: str = ""
    how: str = ""
    passes: bool = False
    stage: Location | None = None
    race: str = ""

    @property
    def fits(self) -> bool:
        """Whether something known accounts for what is wrong."""
        return bool(self.unwritten) or (
            bool(self.named or self.signatures) and not self.unexplained
        )

    def __str__(self) -> str:
        known = self.silent or (self._fitting() if self.fits else self._poor())
        if self.race:
            known = f"{self.race}; a second bug, since the most frequent result is wrong: {known}"
        itself = self.explained and f"the error itself: {self.explained}"
        return "; ".join(filter(None, (known, self.how, itself, self.where)))

    def _fitting(self) -> str:
        if self.unwritten:
            outputs = " and ".join(self.unwritten)
            return (
                f"{FITS}{SIMPLE}never written ({outputs}: NaN where fresh memory is filled with"
                f" NaN){RESIDUAL}0 %; no other candidate)"
            )
        best = (self.named or self.signatures)[0]
        names = [self._name(match) for match in self.named]
        shown, more = names[:MOST_NAMED], len(names) - MOST_NAMED
        several = MORE.format(more) if more > 0 else ""
        known = f"{FITS}{KNOWN}{OR.join(shown)}{several}" if names else ""
        simple = (
            f"{BRIEFLY if names else f'{FITS}{SIMPLE}'}{self._simple()}" if self.signatures else ""
        )
        return f"{known}{simple}{RESIDUAL}{_percent(best)}; {self._next()})"

    def _simple(self) -> str:
        return " or ".join(
            f"{match.suspect.fault.id} ({match.suspect.fault.title})"
            for match in self.signatures[:MOST_NAMED]
        )

    def _next(self) -> str:
        if self.nearest is None:
            return "no other candidate"
        return f"next candidate {self.nearest.suspect.fault.id}: {_percent(self.nearest)}"

    def _poor(self) -> str:
        if self.unexplained:
            first = (self.named or self.signatures)[0]
            left = f"{min(self.unexplained, 1.0):.0%} of the error of the other"
            return (
                f"no single known bug matches: {self._name(first)} accounts for one of the smallest"
                f" and the first case, and leaves {left}"
            )
        if self.nearest is None or not self.nearest.fit.distance < NEAR:
            return "no known bug matches"
        name, left = self._name(self.nearest), self.nearest.fit.distance
        if left <= SHARE:
            return (
                f"no single known bug matches: {name} accounts for most of the error, but for"
                f" {left:.1%} of it, too much for roundings"
            )
        return (
            f"no known bug matches: the nearest, {name}, leaves {left:.0%} of the error unexplained"
        )

    def _name(self, match: Match) -> str:
        size = match.suspect.chunk_size
        if size == self.chunk_size:
            return str(match.suspect)
        return f"{match.suspect} (in chunks of {size})"


def _percent(match: Match) -> str:
    """The share of the kernel's error that a match does not explain."""
    share = 100 * match.fit.distance
    return f"{share:.2g} %" if share < 99.5 else f"{share:.0f} %"  # no 1e+02
