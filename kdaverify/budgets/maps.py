"""Maps of the state: each chunk's S -> M S + C, made before the state is there, and joined.

Maps of chunks that follow each other join to that of all of them, M2 M1 and M2 C1 + C2: chunks, or
ranks, then run at once. Which maps are joined first is open; each product takes M, C and the state
in the formats of these tensors. One right port of chunks of 64 with joins on bf16 units was
rejected at 1.9e4 times the tolerance of S_T as long as the ensemble knew no such products.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kdaverify.budgets import scalar_decay
from kdaverify.budgets.contract import Contract
from oracles.chunk import STAGES, Chunk, ScannedState, Stages
from oracles.chunk_backward import LAST, BackwardStage, BackwardStages, ChunkGradients
from oracles.tokens import OfSequences

Parts = Callable[[Chunk], tuple[Tensor, Tensor]]
"""The keys [C, K] that write what is left of a chunk at its end, and what it keeps [K, K]."""


@dataclass(frozen=True)
class AffineMap(OfSequences):
    """S -> M S + C of the state [K, V] of n sequences.

    Args:
        M: [n, HV, K, K], as products take it.
        C: [n, HV, K, V], in the accumulator's format.
    """

    M: Tensor
    C: Tensor

    def of(self, c: Chunk, S: Tensor) -> Tensor:
        """M S + C, S taken as products with maps take it."""
        return c.dot(self.M, c.store("C", S)) + self.C

    def after(self, c: Chunk, earlier: AffineMap) -> AffineMap:
        """The map of an earlier one and this."""
        M = c.store("M", c.dot(self.M, earlier.M))
        return AffineMap(M, self.of(c, earlier.C))


@dataclass(frozen=True)
class FormedState:
    """Math: 3.5 with the chunk's map of the state made before the state is there."""

    parts: Parts

    def __call__(self, c: Chunk) -> None:
        read_state(c)
        c.S = c.store("S", self.formed(c).of(c, c.S))

    def formed(self, c: Chunk) -> AffineMap:
        """Math: M = kept - keys^T w and C = keys^T u."""
        keys, kept = self.parts(c)
        M = c.store("M", kept - c.dot(keys.mT, c.w))
        return AffineMap(M, c.dot(keys.mT, c.u))


@dataclass(frozen=True)
class JoinedState(ScannedState):
    """Math: 3.5 of many chunks at once, whose maps are joined before the state is there."""

    parts: Parts

    def __call__(self, c: Chunk) -> None:
        read_state(c)

    def past(self, c: Chunk, blocks: Sequence[slice | Tensor], start: Tensor) -> list[Tensor]:
        whole = FormedState(self.parts).formed(c)
        joined = prefixes([whole.picked(block) for block in blocks], c)
        return [c.store("S", one.of(c, start[: len(one.M)])) for one in joined]


@dataclass(frozen=True)
class FormedGradient:
    """Math: VJP of 3.5 with the transposed map: dS -> M^T dS + what the chunk itself adds.

    Without it the samples of d_initial_state scattered too little: right ports of slow gates were
    rejected for a bias of 1.04 times its tolerance, and where sums of gradients are exact for a row
    of 1.34 times.

    Args:
        plain: the stage of kernels that form no map.
    """

    plain: BackwardStage
    parts: Parts

    def __call__(self, b: ChunkGradients) -> None:
        dS, added = b.dS, self._added(b)
        self.plain(b)
        M = FormedState(self.parts).formed(b.c).M
        b.dS = b.store("dS", b.dot(M.mT, b.store("C", dS)) + added)

    def _added(self, b: ChunkGradients) -> Tensor:
        """Math: scale qg^T do - w^T dv, of what reads the state within the chunk."""
        own, arithmetic = copy.copy(b), b.c.arithmetic
        own.c, own.dS = copy.copy(b.c), torch.zeros_like(b.dS)

        def store(name: str, x: Tensor) -> Tensor:
            return x if name in ("dv_new", "dh", "dS") else arithmetic.store(name, x)

        own.c.arithmetic = replace(arithmetic, store=store)
        self.plain(own)
        return own.dS


def read_state(c: Chunk) -> None:
    """Math: 3.5, what a chunk reads of the state before it: h and v_new."""
    c.h = c.store("h", c.S)
    c.v_new = c.store("v_new", c.u - c.dot(c.w, c.h))


def prefixes(maps: Sequence[AffineMap], c: Chunk) -> list[AffineMap]:
    """Of every map, that of it and all before it: by pairs, pairs of pairs, and so on.

    Args:
        maps: the earliest first, of no more sequences than the one before, the same first.
    """
    if len(maps) < 2:
        return [*maps]
    pairs = [_joined(maps, i, maps[i - 1], c) for i in range(1, len(maps), 2)]
    whole = prefixes(pairs, c)
    between = [_joined(maps, i, whole[i // 2 - 1], c) for i in range(2, len(maps), 2)]
    found = [maps[0], *maps[1:]]
    found[1::2], found[2::2] = whole, between
    return found


def _joined(maps: Sequence[AffineMap], i: int, earlier: AffineMap, c: Chunk) -> AffineMap:
    return maps[i].after(c, earlier.picked(slice(len(maps[i].M))))


def mapped(stages: Stages, contract: Contract, *, joined: bool) -> Stages:
    """The same stages with maps of the state formed, and joined."""
    parts = parts_of(contract)
    return replace(stages, state=JoinedState(parts) if joined else FormedState(parts))


def mapped_back(backward: BackwardStages, contract: Contract) -> BackwardStages:
    """The same stages, with maps of the gradient of the state where maps are declared."""
    if contract.transition != "formed":
        return backward
    return replace(backward, state_bwd=FormedGradient(backward.state_bwd, parts_of(contract)))


def parts_of(contract: Contract) -> Parts:
    """What the map of a chunk is made of."""
    return scalar_decay.map_parts if contract.decay == "scalar" else of_channels


def joined_where_formed(stages: Stages, contract: Contract) -> Stages:
    """The same stages, where maps are declared with those joined; not of kernels that make v_new
    in another way.
    """
    if contract.transition != "formed" or stages.state not in (STAGES.state, scalar_decay.state):
        return stages
    return mapped(stages, contract, joined=True)


def of_channels(c: Chunk) -> tuple[Tensor, Tensor]:
    """Where every channel has a gate: kg, and Diag(exp G_c)."""
    return c.kg, torch.diag_embed(c.decay(LAST).squeeze(-2))
