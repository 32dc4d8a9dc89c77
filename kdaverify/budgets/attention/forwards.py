"""What reference kernels made of the latest call whose gradients were judged.

A problem of the panel is judged under three losses, one after another. The forward of a reference
kernel is the same for all: made again for each, forwards took half of the time of smoke.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kdaverify.budgets.attention.contract import AttentionContract
from kdaverify.budgets.attention.ensemble import ReferenceKernel
from oracles.attention.segment import Segment

Forward = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class ForwardRun:
    """One reference kernel, what it made of every segment, and where its samples go on."""

    kernel: ReferenceKernel
    outputs: list[Forward]
    samples: Tensor | None

    def resumed(self) -> ReferenceKernel:
        """The kernel as its forward left it: the samples of a backward are those behind, whichever
        loss is judged first.
        """
        if self.kernel.rng is not None and self.samples is not None:
            self.kernel.rng.set_state(self.samples)
        return self.kernel


Runs = tuple[list[ForwardRun], ...]
Groups = Callable[[], tuple[Sequence[ReferenceKernel], ...]]


@dataclass
class LatestForwards:
    """The runs of one call."""

    _latest: tuple[AttentionContract, list[Segment], Runs] | None = field(default=None)

    def of(self, segments: Sequence[Segment], contract: AttentionContract, groups: Groups) -> Runs:
        """Those of a call.

        Args:
            groups: the reference kernels of the contract, by what they are for.
        """
        latest = self._latest
        if latest is not None and latest[0] == contract and _are_same(latest[1], segments):
            return latest[2]
        # held no longer than needed: those of a long call are large
        self._latest = None
        found = tuple([_run(one, segments) for one in group] for group in groups())
        self._latest = contract, [*segments], found
        return found


def _run(one: ReferenceKernel, segments: Sequence[Segment]) -> ForwardRun:
    outputs = [one.forward(segment) for segment in segments]
    return ForwardRun(one, outputs, None if one.rng is None else one.rng.get_state())


def _are_same(some: Sequence[Segment], others: Sequence[Segment]) -> bool:
    return len(some) == len(others) and all(map(_is_same, some, others))


def _is_same(a: Segment, b: Segment) -> bool:
    if (a.scale, a.lse_includes_sink, a.sink is None) != (
        b.scale,
        b.lse_includes_sink,
        b.sink is None,
    ):
        return False
    pairs = [(a.q, b.q), (a.k, b.k), (a.v, b.v), (a.visible, b.visible)]
    if a.sink is not None and b.sink is not None:
        pairs.append((a.sink, b.sink))
    return all(x.dtype == y.dtype and torch.equal(x, y) for x, y in pairs)
