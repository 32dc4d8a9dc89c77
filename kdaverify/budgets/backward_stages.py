"""The ensemble's backward stage by stage: how conforming kernels differ from the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.emulate import Emulator, running_cumsum_bwd
from kdaverify.budgets.ensemble import ensemble
from kdaverify.budgets.formats import Format
from kdaverify.budgets.score_blocks import SHIFT
from kdaverify.budgets.scores_backward import SCALED_STATE, pairs_with
from kdaverify.budgets.stage_forms import HEAD, form_of
from kdaverify.budgets.sums import matrix_units
from oracles.arithmetic import Arithmetic
from oracles.chunk_backward import BACKWARD, BackwardStage, BackwardStages, ChunkGradients


@dataclass(frozen=True)
class BackwardWay:
    """One conforming path through the stages: the type computed in, the roundings, the table."""

    dtype: torch.dtype
    arithmetic: Arithmetic
    stages: BackwardStages = BACKWARD


def backward_ensemble(contract: Contract, io: Format) -> Iterator[BackwardWay]:
    """The contract's conforming kernels, each way of rounding once, in chunks of its size.

    Beside what the forward leaves open: the order of the suffix sums, whether terms of dG that
    cancel are left out, whether do is scaled before it meets qg, whether beta k and beta v are
    rounded on their way into products, and in what format those of pairs take their operands.
    """
    members = [
        member
        for member in ensemble(contract, io)
        if member.contract.chunk_size == contract.chunk_size
    ]
    apart = {(member.dot, member.exp, member.total, member.backward): member for member in members}
    plain, own = members[0], form_of(contract)
    of_heads = own.backward_stages if own is HEAD else None
    yield from (
        BackwardWay(contract.work, member.arithmetic, of_heads or member.backward)
        for member in apart.values()
    )
    table = of_heads or plain.backward
    yield BackwardWay(
        contract.work, plain.arithmetic, replace(table, cumsum_bwd=running_cumsum_bwd)
    )
    if of_heads:
        return
    otherwise = replace(
        table, state_bwd=SCALED_STATE, dqkwg=last_row_in_both, intra_bwd=own_pairs_in_both
    )
    yield BackwardWay(contract.work, plain.arithmetic, otherwise)
    yield BackwardWay(
        contract.work, _beta_k_rounded(plain), replace(table, wy_bwd=beta_first(contract.operands))
    )
    if contract.solve is not None:
        exp = {"exp": anchored_exp} if contract.anchored else {}
        ways = [{"dot": dot, **exp} for dot in matrix_units(contract.solve, contract).values()]
        yield from (
            BackwardWay(
                contract.work, plain.arithmetic, replace(table, intra_bwd=pairs_with(**way))
            )
            for way in ways
        )
    elif contract.anchored:
        yield BackwardWay(
            contract.work, plain.arithmetic, replace(table, intra_bwd=pairs_with(exp=anchored_exp))
        )


def last_row_in_both(b: ChunkGradients) -> None:
    """Math: VJP of 3.4, the last row taken from its own gate
    and given back with the chunk's end.
    """
    BACKWARD.dqkwg(b)
    last = (b.c.tokens.k * b.dk).masked_fill(~b.last, 0.0)
    b.dG = b.store("dG_state", (b.dG - last) + last)


def own_pairs_in_both(b: ChunkGradients) -> None:
    """Math: VJP of 3.2, the pairs (i, i) given to the gate by row and taken by column."""
    BACKWARD.intra_bwd(b)
    own = b.dAqk.diagonal(dim1=-2, dim2=-1)[..., None] * b.c.tokens.q * b.c.tokens.k
    b.dG = b.store("dG", (b.dG + own) - own)


def beta_first(operands: Format) -> BackwardStage:
    """Math: VJP of 3.3 and 3.4, with beta k and beta v the operands
    of the products with dw and dv_new.
    """

    def wy_bwd(b: ChunkGradients) -> None:
        tokens, beta = b.c.tokens, b.c.tokens.beta[..., None]
        k, v = (
            torch.where(beta == 0, x, operands.round(beta * x) / beta) for x in (tokens.k, tokens.v)
        )
        b.c.tokens = replace(tokens, k=k, v=v)
        BACKWARD.wy_bwd(b)
        b.c.tokens = tokens

    return wy_bwd


def anchored_exp(x: Tensor) -> Tensor:
    """exp of a difference as a product of exponentials relative to a row, rounded there."""
    return (x / 2 + SHIFT).exp() * (x / 2 - SHIFT).exp()


def _beta_k_rounded(plain: Emulator) -> Arithmetic:
    def store(name: str, tensor: Tensor) -> Tensor:
        return (
            plain.contract.operands.round(tensor) if name == "beta_k" else plain.store(name, tensor)
        )

    return replace(plain.arithmetic, store=store)
