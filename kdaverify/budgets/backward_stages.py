"""The family's backward stage by stage: what kernels do there otherwise than the oracle, and legally."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.emulate import Emulator, matrix_units, with_dot
from kdaverify.budgets.family import family
from kdaverify.budgets.formats import Format
from kdaverify.budgets.solves import Dot
from oracles.arithmetic import Arithmetic
from oracles.chunk_backward import BACKWARD, BackwardStage, BackwardStages, ChunkGradients


@dataclass(frozen=True)
class BackwardWay:
    """One legal way through the stages: the type computed in, the roundings, the table."""

    dtype: torch.dtype
    arithmetic: Arithmetic
    stages: BackwardStages = BACKWARD


def backward_family(contract: Contract, io: Format) -> Iterator[BackwardWay]:
    """The legal kernels of the contract, each way of rounding once, in chunks of the declared size.

    Beside what the forward leaves open: the order of the suffix sums, whether beta k is rounded on its way into the products of pairs,
    and in what format these take their operands.
    """
    members = [member for member in family(contract, io) if member.contract.chunk_size == contract.chunk_size]
    apart = {(member.dot, member.exp, member.total): member for member in members}
    plain = members[0]
    yield from (BackwardWay(contract.work, member.arithmetic) for member in apart.values())
    yield BackwardWay(contract.work, plain.arithmetic, replace(BACKWARD, cumsum_bwd=running_cumsum_bwd))
    yield BackwardWay(contract.work, _beta_k_rounded(plain))
    if contract.solve is not None:
        units = matrix_units(contract.solve).values()
        yield from (BackwardWay(contract.work, plain.arithmetic, replace(BACKWARD, intra_bwd=pairs_with_dot(dot))) for dot in units)


def running_cumsum_bwd(b: ChunkGradients) -> None:
    """Math: VJP of 3.1 with every partial sum rounded to the working type (torch sums in a wider one)."""
    BACKWARD.cumsum_bwd(b)
    rows = list(accumulate(reversed(b.dG.unbind(-2))))
    b.dg = b.store("dg", torch.stack(rows[::-1], dim=-2).masked_fill(b.c.tokens.g.isneginf(), 0.0))


def pairs_with_dot(dot: Dot) -> BackwardStage:
    """Math: VJP of 3.2 with products of one kind."""

    def intra_bwd(b: ChunkGradients) -> None:
        with_dot(lambda _: BACKWARD.intra_bwd(b), dot)(b.c)

    return intra_bwd


def _beta_k_rounded(plain: Emulator) -> Arithmetic:
    def store(name: str, tensor: Tensor) -> Tensor:
        return plain.contract.operands.round(tensor) if name == "beta_k" else plain.store(name, tensor)

    return replace(plain.arithmetic, store=store)
