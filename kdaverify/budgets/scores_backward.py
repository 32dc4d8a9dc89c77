"""The backward of scores and solve, for kernels with scores from matrix units by blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

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
