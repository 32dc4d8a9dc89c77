"""The search: every mailbox in every format alone, then the narrowest assignments.

Each trial is a run; nothing is added up. Sums in quadrature only say which combination is tried
next. A combination over the limit ends
its branch: a further rounding is taken never to repair one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from kdaverify.budgets.designs.design import Formats, Mailbox
from kdaverify.budgets.formats import FORMATS, MAILBOX_FORMATS, Format
from kdaverify.checks.mailboxes.bench import DesignTest, Place, Trial
from oracles.tensors import GRADIENTS

WIDE: Final = FORMATS["fp32"]
NARROW: Final = tuple(fmt for fmt in MAILBOX_FORMATS.values() if fmt is not WIDE)
# Combinations that go on at each step, and that each of them starts.
BEAM = 2

Part = Literal["forward", "backward"]
Move = tuple[str, Format]
Branch = tuple[Trial, list[Move]]
"""A combination, and the moves that may still go on from it."""


@dataclass
class Study:
    """What is known of one part of a design; an interrupted search leaves what it found.

    Args:
        bench: where assignments are tried.
        part: whose mailboxes are searched; the backward's are scored by gradients alone.
        limit: the largest multiple of the tolerance that an assignment may take.
        most: how many combinations are tried.
        beside: formats of the other part where they are not the design's.
        refused: regimes that overflow with any mailboxes, and the tensor that does so first.
        ends: the trials of fp32 in every mailbox searched, and of the design's own formats.
        singles: of one mailbox alone in one format, the others wide; combined: of several.
    """

    bench: DesignTest
    part: Part
    limit: float = 1.0
    most: int = 60
    beside: Formats = field(default_factory=dict[str, Format])
    refused: dict[str, str] = field(default_factory=dict[str, str])
    ends: list[Trial] = field(default_factory=list[Trial])
    singles: dict[Move, Trial] = field(default_factory=dict[Move, Trial])
    combined: list[Trial] = field(default_factory=list[Trial])

    @property
    def mailboxes(self) -> tuple[Mailbox, ...]:
        design = self.bench.design
        return design.mailboxes if self.part == "forward" else design.backward_mailboxes

    @property
    def wide(self) -> Trial:
        return self.ends[0]

    @property
    def own(self) -> Trial:
        return self.ends[1]

    @property
    def steps(self) -> int:
        """Trials at most."""
        return 2 + len(self.mailboxes) * len(NARROW) + self.most

    def run(self) -> Iterator[str]:
        """Searches; says after every trial what it was."""
        self._begin()
        if not self.ends:
            return
        yield "every mailbox wide, and the design's own formats"
        for mailbox in self.mailboxes:
            for fmt in NARROW:
                self.singles[mailbox.name, fmt] = self._trial(
                    {**self.wide.formats, mailbox.name: fmt}
                )
                yield f"{mailbox.name} in {fmt.name}"
        yield from self._combine()

    def moved(self, trial: Trial) -> int:
        """Bytes of the searched part."""
        return sum(mailbox.bytes_in(trial.formats[mailbox.name]) for mailbox in self.mailboxes)

    @property
    def tried(self) -> int:
        return len(self.trials)

    @property
    def front(self) -> list[Trial]:
        """The trials that none beats in both bytes and share, widest first."""
        kept: list[Trial] = []
        for trial in sorted(self.trials, key=lambda t: (self.moved(t), t.share)):
            if math.isfinite(trial.share) and (not kept or trial.share < kept[-1].share):
                kept.append(trial)
        return kept[::-1]

    @property
    def best(self) -> Trial | None:
        """The fewest bytes within the limit, None if nothing is."""
        return min(
            (t for t in self.trials if t.share <= self.limit),
            key=lambda t: (self.moved(t), t.share),
            default=None,
        )

    @property
    def trials(self) -> list[Trial]:
        """Everything that was run."""
        return [*self.ends, *self.singles.values(), *self.combined]

    def _begin(self) -> None:
        design, operands = self.bench.design, self.bench.operands
        own = {**design.formats(operands), **self.beside}
        formats = {**own, **{mailbox.name: WIDE for mailbox in self.mailboxes}}
        wide = self.bench.trial(formats)
        beyond = dict.fromkeys(
            place[0] for place, share in wide.shares.items() if math.isinf(share)
        )
        self.refused = {
            regime: self.bench.first_overflow(formats, regime) or "a gradient" for regime in beyond
        }
        if len(self.refused) < len(self.bench.regimes):
            self.ends = [wide.only(self._tested), self._trial(own)]

    def _trial(self, formats: Mapping[str, Format]) -> Trial:
        return self.bench.trial(formats).only(self._tested)

    def _tested(self, place: Place) -> bool:
        return place[0] not in self.refused and (self.part == "forward" or place[1] in GRADIENTS)

    def _moves(self) -> dict[str, list[Format]]:
        """Each mailbox's best format of 16 and of 8 bits, alone within the limit.

        Matrix cores multiply two operands of one kind: of 16 bits they are sent what the design's
        are. Eight bits are exact in sixteen.
        """
        moves: dict[str, list[Format]] = {}
        for mailbox in self.mailboxes:
            for size in (2, 1):
                possible = [fmt for fmt in NARROW if fmt.dtype.itemsize == size]
                if mailbox.to == "cube" and size == self.bench.operands.dtype.itemsize:
                    possible = [self.bench.operands]
                share, fmt = min(
                    ((self.singles[mailbox.name, fmt].share, fmt) for fmt in possible),
                    key=lambda found: found[0],
                )
                if share <= self.limit:
                    moves.setdefault(mailbox.name, []).append(fmt)
        return moves

    def _combine(self) -> Iterator[str]:
        moves = [(name, fmt) for name, formats in self._moves().items() for fmt in formats]
        beam, tried = [(self.wide, moves)], set[frozenset[Move]]()
        while beam:
            grown: list[Branch] = []
            for branch in beam:
                yield from self._grow(branch, tried, grown)
            beam = sorted(grown, key=lambda branch: (self.moved(branch[0]), branch[0].share))[:BEAM]

    def _grow(
        self, branch: Branch, tried: set[frozenset[Move]], grown: list[Branch]
    ) -> Iterator[str]:
        """Tries a branch's moves, inexpensive ones first, until BEAM stay within the limit."""
        parent, moves = branch
        left = [
            move
            for move in moves
            if move[1].dtype.itemsize < parent.formats[move[0]].dtype.itemsize
        ]
        within = 0
        for move in sorted(left, key=lambda move: self._price(parent, move)):
            formats = {**parent.formats, move[0]: move[1]}
            if within >= BEAM or len(tried) >= self.most:
                return
            if (key := frozenset(formats.items())) in tried:
                continue
            tried.add(key)
            self.combined.append(trial := self._trial(formats))
            yield (
                f"combination {len(tried)}: {trial.share:.3g}x tolerance, {self.moved(trial)} bytes"
            )
            if trial.share <= self.limit:
                within += 1
                grown.append((trial, left))
            else:
                left = [other for other in left if other != move]

    def _price(self, parent: Trial, move: Move) -> float:
        """What a move is expected to add to the square of the share, for a byte that it saves."""
        single, wide = self.singles[move], self.wide
        expected = max(
            math.sqrt(share**2 + max(0.0, single.shares[at] ** 2 - wide.shares[at] ** 2))
            for at, share in parent.shares.items()
        )
        mailbox = next(mailbox for mailbox in self.mailboxes if mailbox.name == move[0])
        saved = mailbox.bytes_in(parent.formats[move[0]]) - mailbox.bytes_in(move[1])
        return (expected**2 - parent.share**2) / saved
