"""The chunk kernels of one Ascend design: seven phases, everything stored between cores.

Decays are products of exp(G_i) and exp(-G_j), both stored: the second overflows fp32 where the
gates of a chunk sum to less than -88, and fp16 past -11. A hard reset is an infinite sum, as log 0
gives it. The caller folds the scale into q.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kdaverify.budgets.solves import by_blocks
from oracles.chunk import STAGES, Chunk, Stage, Stages
from oracles.chunk_backward import BACKWARD, ChunkGradients

EVERY, LAST = slice(None), slice(-1, None)
# Rows of the blocks that the vector core substitutes forward.
BLOCK = 8
# The design adds it to the decay, so that the logarithm of a decay of 0 stays finite.
EPS = 1e-6


def factors(c: Chunk) -> None:
    """Phases A and B and the scores of D. Math: 3.2 as (q exp G) (k exp -G)^T; w and u hold
    K_scaled and v until they are solved.
    """
    q, k, v = c.tokens.q, c.tokens.k, c.tokens.v
    G = _unbounded_sums(c)
    inward, outward = c.arithmetic.exp(G), c.arithmetic.exp(-G)
    c.w, c.u = c.store("K_scaled", k * inward), c.store("v", v)
    back = c.store("K_div", k * outward).transpose(-1, -2)
    c.qg = c.store("Q_scaled", c.store("q", c.scale * q) * inward)
    c.kg = c.store("K_decay", k * c.arithmetic.exp(G[..., LAST, :] - G))
    c.Akk = (c.tokens.beta[..., None] * c.store("A_raw", c.dot(c.w, back))).tril(-1)
    c.Aqk = c.store("Aqk", c.store("Aqk_raw", c.dot(c.qg, back)).tril())


def substitute(c: Chunk) -> None:
    """Phase C. Math: 3.3 by 8-row blocks on the vector core; M = R Diag(beta) is what leaves it."""
    c.R = c.store("M", by_blocks(c.Akk, torch.matmul, size=BLOCK) * c.tokens.beta[..., None, :])


def solved(c: Chunk) -> None:
    """Phase D. Math: 3.4, beta inside M."""
    c.w, c.u = c.store("W", c.dot(c.R, c.w)), c.store("U", c.dot(c.R, c.u))


def decayed_state(c: Chunk) -> None:
    """Phases D to G. Math: 3.5; both products are stored before they are added."""
    c.S = c.store("S", c.S * c.decay(LAST).transpose(-1, -2) + _written(c))


def decayed_columns(c: Chunk) -> None:
    """The same with the decay along the value axis: wrong, and without a meaning unless K = V."""
    c.S = c.store("S", c.S * c.decay(LAST) + _written(c))


def _written(c: Chunk) -> Tensor:
    c.h = c.store("h", c.S)
    c.v_new = c.store("V_pseudo", c.u - c.store("WS", c.dot(c.w, c.h)))
    return c.store("S_delta", c.dot(c.kg.transpose(-1, -2), c.v_new))


def stored_output(c: Chunk) -> None:
    """Phases D, F and G. Math: 3.6, the scale in qg; both products are stored, then added."""
    c.o = c.store(
        "o", c.store("O_inter", c.dot(c.qg, c.h)) + c.store("O_intra", c.dot(c.Aqk, c.v_new))
    )


def biased_cumsum(c: Chunk) -> None:
    """Math: 3.1 of log(alpha + eps), which the definition does not know."""
    tokens = c.tokens
    c.tokens = replace(tokens, g=(tokens.g.exp() + EPS).log())
    STAGES.cumsum(c)
    c.tokens = tokens


def _unbounded_sums(c: Chunk) -> Tensor:
    """G as a plain sum of log alpha has it: -inf from a hard reset on."""
    return c.G if c.resets is None else c.G.masked_fill(c.resets > 0, -torch.inf)


def recompute(b: ChunkGradients) -> None:
    """The backward has R and q exp G made again, as the forward keeps neither, and begins."""
    c = b.c
    c.R = c.store("R", by_blocks(c.Akk, torch.matmul, size=BLOCK))
    c.qg = c.store("qg", c.tokens.q * c.decay(EVERY))
    BACKWARD.dv_local(b)


def _stages(state: Stage) -> Stages:
    return Stages(scores=factors, solve=substitute, wy=solved, state=state, output=stored_output)


CHUNK_STAGES = _stages(decayed_state)
COLUMN_DECAY = _stages(decayed_columns)
BIASED = replace(CHUNK_STAGES, cumsum=biased_cumsum)
CHUNK_BACKWARD = replace(BACKWARD, dv_local=recompute)
