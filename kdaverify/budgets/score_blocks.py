"""Scores where only some blocks come from matrix units.

Off the diagonal both factors of a 16-row block are decays of at most 1, operands of matrix units and rounded as such. On it, kernels
either take exponentials of differences on vector units, unrounded: then the two kinds of blocks disagree by the operands' rounding,
which coherent keys show. Or they take exponents relative to a row of the block, so that matrix units serve there too: both factors
are rounded, and exp of the gates between that row and the ends must not overflow. Such kernels promise gates of at least -5.
"""

from __future__ import annotations

import torch

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.emulate import with_dot
from oracles.chunk import STAGES, SUB_BLOCK, Chunk, Stage

# A factor holds the gates of half a sub-block; exp overflows fp32 past 88 nats.
LARGEST_EXPONENT = 80.0


def vector_diagonal_scores(c: Chunk) -> None:
    """Math: 3.2, the diagonal blocks in the accumulator's format throughout."""
    STAGES.scores(c)
    Aqk, Akk = c.Aqk, c.Akk
    with_dot(STAGES.scores, torch.matmul)(c)
    block = torch.arange(Aqk.shape[-1], device=Aqk.device) // SUB_BLOCK
    diagonal = block[:, None] == block
    c.Aqk, c.Akk = torch.where(diagonal, c.Aqk, Aqk), torch.where(diagonal, c.Akk, Akk)


def anchored_scores(c: Chunk) -> None:
    """Math: 3.2, D_ij of a diagonal block as exp(G_i - G_a) exp(G_a - G_j) with a its middle row."""
    STAGES.scores(c)
    if c.resets is not None:
        return
    q, k, beta = c.tokens.q, c.tokens.k, c.tokens.beta[..., None]
    Aqk, Akk = c.Aqk.clone(), c.Akk.clone()
    for first in range(0, q.shape[-2], SUB_BLOCK):
        rows = slice(first, min(first + SUB_BLOCK, q.shape[-2]))
        middle = (rows.start + rows.stop) // 2
        exponent = c.G[..., rows, :] - c.G[..., middle : middle + 1, :]
        if float(exponent.abs().max()) > LARGEST_EXPONENT:
            continue
        later, earlier = c.arithmetic.exp(exponent), (k[..., rows, :] * c.arithmetic.exp(-exponent)).transpose(-1, -2)
        Aqk[..., rows, rows] = (c.scale * c.dot(q[..., rows, :] * later, earlier)).tril()
        Akk[..., rows, rows] = (beta[..., rows, :] * c.dot(k[..., rows, :] * later, earlier)).tril(-1)
    c.Aqk, c.Akk = c.store("Aqk", Aqk), c.store("Akk", Akk)


def scores_of(contract: Contract) -> Stage:
    """The way of math.md 3.2 that a contract with a solve apart declares."""
    return anchored_scores if contract.anchored else vector_diagonal_scores
