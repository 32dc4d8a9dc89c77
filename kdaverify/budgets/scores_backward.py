"""Variants of backward stages: of the scores and the solve by blocks on matrix units, and of the
state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from torch import Tensor

from kdaverify.budgets.score_blocks import Blocks
from kdaverify.budgets.solves import Dot
from kdaverify.budgets.sums import three_products
from oracles.chunk_backward import (
    BACKWARD,
    BackwardStage,
    BackwardStages,
    ChunkGradients,
    intra_bwd,
    wy_bwd,
)

RIGHT_FIRST = replace(BACKWARD, wy_bwd=partial(wy_bwd, right_first=True))
"""Of the products R^T dR R^T the right one is taken first: with coherent keys the order decides
where the rounding goes."""


def scaled_first(state_bwd: BackwardStage) -> BackwardStage:
    """Math: VJP of 3.5 and of 3.6 in h, with scale do the operand of the product with qg.

    Where gates are 0 and keys tiny, that product is all of d_initial_state, and qg is q: cuDNN's
    backward, which rounds q exp(G) with the scale in it, was rejected there for an rms error of
    1.27 times the tolerance.
    """

    def stage(b: ChunkGradients) -> None:
        do, scale = b.do, b.c.scale
        b.do, b.c.scale = b.store("do_scaled", scale * do), 1.0
        state_bwd(b)
        b.do, b.c.scale = do, scale

    return stage


SCALED_STATE: Final = scaled_first(BACKWARD.state_bwd)


def scores_backward(unit: Dot, blocks: Blocks, vector: Dot) -> BackwardStages:
    """The backward of kernels that take the scores by `blocks`, off the diagonal by `unit`.

    The pair (i, i) is one of the pairs of its block: what it gives to dG cancels but for roundings,
    which deep decay shows.

    Args:
        unit, vector: dot products of matrix units and of vector units.
    """
    inside = {"vector units": vector, "matrix units": unit, "three products": three_products}[
        blocks.inside
    ]
    pairs = partial(intra_bwd, across=unit, own_apart=False, within=blocks.within)
    return replace(RIGHT_FIRST, intra_bwd=pairs_with(pairs, dot=inside))


def pairs_with(
    pairs: BackwardStage = intra_bwd, /, **changed: Callable[..., Tensor]
) -> BackwardStage:
    """Math: VJP of 3.2 with products, or exponentials, of one kind."""

    def changed_pairs(b: ChunkGradients) -> None:
        arithmetic = b.c.arithmetic
        b.c.arithmetic = replace(arithmetic, **changed)
        pairs(b)
        b.c.arithmetic = arithmetic

    return changed_pairs
