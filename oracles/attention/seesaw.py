"""FlashMLA's decode on Hopper: blocks in pairs, the columns of V in two halves accumulated by two
warpgroups, which round P differently.

Math: mla.md 2.1. For blocks 0 and 1 of a pair, R rounding to the stored format of P:
    O_L = a1 (a0 O_L + R(P0) V0_L) + R(P1) V1_L
    O_R = a0 a1 O_R + R(P1) V1_R + R(P0 a1) V0_R
Source: FlashMLA, csrc/sm90/decode/dense/splitkv_mla.cuh.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from oracles.attention.design import Span
from oracles.attention.pipeline import AttentionPipeline, PackedRows, Partial, Running


def both(a0: Tensor, a1: Tensor) -> tuple[Tensor, Tensor]:
    """What the accumulator's halves are multiplied by around products: left twice, right once."""
    return a0, a0 * a1


Factors = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def seesaw(
    run: AttentionPipeline, rows: PackedRows, span: Span, *, factors: Factors = both
) -> Partial:
    """The partial of a split, two blocks a round."""
    blocks, state = [*run.design.blocks(span)], rows.state()
    for at in range(0, len(blocks), 2):
        pair = blocks[at : at + 2]
        if len(pair) == 2:
            state = two_blocks(run, rows, state, pair, factors)
        else:
            state = one(run, rows, state, pair)
    return run.stages.finish(run, state)


def masked_scores(run: AttentionPipeline, rows: PackedRows, block: Span) -> tuple[Tensor, Tensor]:
    """S of a block, and which of its keys each row sees."""
    visible = rows.visible[..., slice(*block)]
    S = run.stages.scores(run, rows.q, rows.k[:, slice(*block)])
    return run.stages.mask(run, S, visible), visible


def one(run: AttentionPipeline, rows: PackedRows, state: Running, pair: list[Span]) -> Running:
    """The last block of an odd number: both halves alike."""
    S, visible = masked_scores(run, rows, pair[0])
    return run.stages.accumulate(run, state, S, rows.v[:, slice(*pair[0])], visible)


def halves(v: Tensor) -> tuple[Tensor, Tensor]:
    """The two halves of the columns."""
    left, right = v.tensor_split((v.shape[-1] // 2,), -1)
    return left, right


def two_blocks(
    run: AttentionPipeline, rows: PackedRows, state: Running, pair: list[Span], factors: Factors
) -> Running:
    """One round."""
    (S0, seen0), (S1, seen1) = (masked_scores(run, rows, block) for block in pair)
    (L0, R0), (L1, R1) = (halves(rows.v[:, slice(*block)]) for block in pair)
    stages = run.stages
    m0 = stages.maximum(run, state.m, S0)
    m1 = stages.maximum(run, m0, S1)
    a0 = run.store("alpha", stages.rescale(run, state.m, m0))
    a1 = run.store("alpha", stages.rescale(run, m0, m1))
    P0, P1 = stages.weights(run, S0, m0), stages.weights(run, S1, m1)
    stored0, stored1 = run.store("P", P0), run.store("P", P1)
    again = run.store("P", P0 * a1[..., None])
    left, right = halves(state.acc)
    first, whole = factors(a0, a1)
    left = first[..., None] * left + run.block_product(stored0, L0, seen0)
    left = a1[..., None] * left + run.block_product(stored1, L1, seen1)
    right = whole[..., None] * right + run.block_product(stored1, R1, seen1)
    right = right + run.block_product(again, R0, seen0)
    l0 = a0 * state.l + stages.row_sum(run, P0, stored0)
    l = a1 * l0 + stages.row_sum(run, P1, stored1)  # noqa: E741
    acc = run.store("accumulator", torch.cat((left, right), -1))
    return Running(m1, run.store("l", l), acc)
