"""Scores whose diagonal blocks are products too: the exponents of a 16-row sub-block are taken relative to its middle row.

Both factors are operands of matrix units, and both are rounded. exp of the gates between the middle and the ends must not overflow:
kernels that work so promise gates of at least -5; elsewhere the emulation keeps to exponentials of differences.
"""

from __future__ import annotations

from kdaverify.budgets.contract import Contract
from oracles.chunk import STAGES, SUB_BLOCK, Chunk, Stage

# A factor holds the gates of half a sub-block; exp overflows fp32 past 88 nats.
LARGEST_EXPONENT = 80.0


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
    """The way of math.md 3.2 that a contract declares."""
    return anchored_scores if contract.anchored else STAGES.scores
