"""Scores where only some blocks come from matrix units.

Off the diagonal both factors of a 16-row block are decays of at most 1, operands of matrix units
and rounded as such. On it, kernels either take exponentials of differences on vector units,
unrounded: then the two kinds of blocks disagree by the operands' rounding, which coherent keys
show. Or they take exponents relative to a row of the block, so that matrix units serve there too:
both factors are rounded, and exp of the gates between that row and the ends must not overflow. Such
kernels promise gates of at least -5. The row is the middle one (which lets gates of later tokens
into earlier scores), or the first, moved half-way by a guess of the gates.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.emulate import with_dot
from oracles.chunk import STAGES, Chunk, Stage
from oracles.chunk_backward import Within

Anchor = Callable[[Tensor], Tensor]
Inside: TypeAlias = Literal["vector units", "matrix units", "three products"]


class Blocks(NamedTuple):
    """A way of the diagonal blocks.

    Args:
        scores: the stage.
        within: factors of decays between a block's rows, in the backward; None: differences.
        inside: what takes their dot products in the backward.
    """

    scores: Stage
    within: Within | None = None
    inside: Inside = "vector units"


# A factor holds the gates of half a sub-block; exp overflows fp32 past 88 nats.
LARGEST_EXPONENT = 80.0
# Half of 15 steps of 2 nats: where flash-linear-attention expects the middle of a block to be, from
# its first row.
SHIFT = 15.0


def vector_diagonal_scores(c: Chunk) -> None:
    """Math: 3.2, the diagonal blocks in the accumulator's format throughout."""
    STAGES.scores(c)
    Aqk, Akk = c.Aqk, c.Akk
    with_dot(STAGES.scores, torch.matmul)(c)
    block = torch.arange(Aqk.shape[-1], device=Aqk.device) // c.arithmetic.sub_block
    diagonal = block[:, None] == block
    c.Aqk, c.Akk = torch.where(diagonal, c.Aqk, Aqk), torch.where(diagonal, c.Akk, Akk)


def _anchored_at(anchor: Anchor) -> Stage:
    """Math: 3.2, D_ij of a diagonal block as exp(G_i - a) exp(a - G_j), `anchor` giving a [1, K] of
    the block's G [s, K].
    """

    def scores(c: Chunk) -> None:
        STAGES.scores(c)
        if c.resets is not None:
            return
        q, k, beta = c.tokens.q, c.tokens.k, c.tokens.beta[..., None]
        Aqk, Akk = c.Aqk.clone(), c.Akk.clone()
        for first in range(0, q.shape[-2], c.arithmetic.sub_block):
            rows = slice(first, min(first + c.arithmetic.sub_block, q.shape[-2]))
            exponent = c.G[..., rows, :] - anchor(c.G[..., rows, :])
            if float(exponent.detach().abs().max()) > LARGEST_EXPONENT:
                continue
            later = c.arithmetic.exp(exponent)
            earlier = (k[..., rows, :] * c.arithmetic.exp(-exponent)).transpose(-1, -2)
            Aqk[..., rows, rows] = (c.scale * c.dot(q[..., rows, :] * later, earlier)).tril()
            Akk[..., rows, rows] = (
                beta[..., rows, :] * c.dot(k[..., rows, :] * later, earlier)
            ).tril(-1)
        c.Aqk, c.Akk = c.store("Aqk", Aqk), c.store("Akk", Akk)

    return scores


def _middle(G: Tensor) -> Tensor:
    middle = G.shape[-2] // 2
    return G[..., middle : middle + 1, :]


def _shifted_first(G: Tensor) -> Tensor:
    return G[..., :1, :] - SHIFT


def _factors_at(anchor: Anchor) -> Within:
    """The factors of D of math.md 3.2 for a block of rows against itself, if none overflows."""

    def factors(c: Chunk, rows: slice) -> tuple[Tensor, Tensor] | None:
        exponent = c.G[..., rows, :] - anchor(c.G[..., rows, :])
        if c.resets is not None or float(exponent.detach().abs().max()) > LARGEST_EXPONENT:
            return None
        return c.arithmetic.exp(exponent), c.arithmetic.exp(-exponent)

    return factors


# flash-linear-attention 0.6.0 takes the backward's diagonal blocks in three bf16 products; 0.5.2
# took them in TF32.
ANCHORED = {
    "first": Blocks(_anchored_at(_shifted_first), _factors_at(_shifted_first), "three products"),
    "middle": Blocks(_anchored_at(_middle), _factors_at(_middle), "matrix units"),
}
VECTOR = Blocks(vector_diagonal_scores)
AT_FIRST = _anchored_at(lambda G: G[..., :1, :])
"""The scores relative to the first row as it is: a factor of up to exp 75, where gates are -5."""


def blocks_of(contract: Contract) -> tuple[Blocks, ...]:
    """The ways of math.md 3.2 that separate solves or anchored diagonal blocks leave open."""
    if not contract.anchored:
        return (VECTOR,)
    found = tuple(ANCHORED[row] for row in anchor_rows(contract))
    # Three products of 16 bits stand in for one of a wider format; operands that are wide already
    # need no such thing.
    if contract.solve is not None:
        return found
    return tuple(blocks._replace(inside="matrix units") for blocks in found)


def anchor_rows(contract: Contract) -> tuple[str, ...]:
    """The rows of a block that anchored scores may be relative to, as a contract names them."""
    return tuple(ANCHORED) if contract.anchor == "free" else (contract.anchor,)
