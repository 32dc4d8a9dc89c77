"""Faults of the scores Aqk and Akk (math.md 3.2)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.formats import FORMATS
from kdaverify.faults.decays import (
    AnchoredAtTheFirstRow,
    AnchoredOneRowLate,
    ClampedFromTheStart,
    DecayDifferences,
    FromTheStart,
    MaskedByMultiplication,
    OneOffsetForAllChannels,
    PaddedRowsAtZero,
    StoredFromTheStart,
    Unmasked,
    WithoutZeroDifferences,
)
from kdaverify.faults.fault import Fault, Setting
from kdaverify.faults.kernel import Patch
from kdaverify.faults.patches import at_random, dense, packed, part_of, per_call, staged
from kdaverify.faults.views import LAST, lengths, one_tile, order, pads, seen_as, with_tokens
from oracles.arithmetic import SUB_BLOCK
from oracles.chunk import STAGES, Chunk, Stages
from oracles.inputs import Inputs

_scores = partial(Fault, stage="scores")


def _back_from_the_start(c: Chunk) -> None:
    STAGES.wy(c)
    c.kg = c.store("kg", c.tokens.k * c.arithmetic.exp(-c.G) * c.decay(LAST))


def _multiplied_by_the_mask(c: Chunk) -> None:
    seen_as(Unmasked, STAGES.scores)(c)
    c.Aqk = c.Aqk * torch.ones_like(c.Aqk).tril()


def _tiles_left_unwritten(c: Chunk) -> None:
    STAGES.scores(c)
    tile = torch.arange(c.Aqk.shape[-1], device=c.Aqk.device) // SUB_BLOCK
    unwritten = tile[:, None] < tile
    c.Aqk, c.Akk = (A.masked_fill(unwritten, torch.nan) for A in (c.Aqk, c.Akk))


def _with_rows_past_the_end(c: Chunk) -> None:
    k = c.tokens.k.masked_fill(pads(c), torch.nan)
    other = with_tokens(c, k=k)
    STAGES.scores(other)
    c.Aqk, c.Akk = other.Aqk, other.Akk


def _wide_groups_with_ragged_tails(x: Inputs) -> bool:
    return x.HV > x.H and x.V > x.K and any(length % SUB_BLOCK for length in x.lengths)


def _a_tile_is_missing(c: Chunk, random: torch.Generator) -> None:
    STAGES.scores(c)
    c.Akk = torch.where(one_tile(c.Akk, random), torch.zeros_like(c.Akk), c.Akk)


def _scale_before_rounding(setting: Setting) -> Patch:
    def scores(c: Chunk) -> None:
        # The padded rows of k are 0, and their decay is not masked.
        seen_as(PaddedRowsAtZero, STAGES.scores)(c)
        scaled = c.scale * c.tokens.q
        other = with_tokens(c, q=part_of(scaled, FORMATS["bf16"].round(scaled), setting.strength))
        other.scale = 1.0
        seen_as(PaddedRowsAtZero, STAGES.scores)(other)
        c.Aqk = other.Aqk

    table = replace(STAGES, scores=scores)
    return Patch(stages=lambda _: table)


def _at_width_32(c: Chunk) -> None:
    if c.tokens.k.shape[-1] == 32:
        seen_as(Unmasked, STAGES.scores)(c)
    else:
        STAGES.scores(c)


def _columns_from_the_pack_start(x: Inputs) -> Stages:
    shifts = torch.tensor([x.starts[n] % 64 for n in order(x)], device=x.q.device)

    def shifted(A: Tensor) -> Tensor:
        C = A.shape[-1]
        column = torch.arange(C, device=A.device) - shifts[: len(A), None]
        moved = A.gather(-1, (column % C)[:, None, None, :].expand_as(A))
        return moved.masked_fill((column < 0)[:, None, None, :], 0.0)

    def scores(c: Chunk) -> None:
        STAGES.scores(c)
        c.Aqk, c.Akk = shifted(c.Aqk).tril(), shifted(c.Akk).tril(-1)

    return replace(STAGES, scores=scores) if packed(x) else STAGES


def _garbage_in_the_tail(c: Chunk) -> None:
    tail = pads(c) & (lengths(c) % SUB_BLOCK > 0)
    v = c.tokens.v.masked_fill(tail, torch.nan)
    other = with_tokens(c, v=v)
    STAGES.wy(other)
    c.w, c.u, c.qg, c.kg = other.w, other.u, other.qg, other.kg


_STRONG = "gates that sum to more than 88 nats in a chunk"
_DEEP = "gates below -88 in one step"

FAULTS: Final = (
    _scores("GA4", "exp(-G) is materialised, for scores and keys alike", "MoonshotAI/FlashKDA#7",
            "A", _STRONG, ("o", "final_state"),
            staged(scores=seen_as(FromTheStart, STAGES.scores), wy=_back_from_the_start)),
    _scores("GA5", "blocks relative to their first row span 15 steps of any gate",
            "meta-pytorch/attention-gym#337 (b)", "A", "gates below -5.9 on 15 tokens in a row",
            ("o",), staged(scores=seen_as(AnchoredAtTheFirstRow, STAGES.scores))),
    _scores("GA15", "decays of exactly 1 are dropped",
            "fla-org/fla#104,#389 (fixes c57e6c29, #463)", "A", "gates of exactly 0", ("o",),
            staged(scores=seen_as(WithoutZeroDifferences, STAGES.scores)), graded=True),
    _scores("GA16", "exponentiated before the mask, masked by multiplication",
            "tile-ai/tilelang-ascend#1460", "A", _STRONG, ("o",),
            staged(scores=seen_as(MaskedByMultiplication, STAGES.scores))),
    _scores("GA17", "one offset for all channels of a token, exponents clamped",
            "huawei-csl/megagdn-pto#26,#32", "A", "channels that part by more than 88 nats", ("o",),
            staged(scores=seen_as(OneOffsetForAllChannels, STAGES.scores))),
    _scores("GA18", "exponents from the chunk's start, clamped to 80 bits",
            "flashserve/fla-npu@72848672", "A", "gates that sum to more than 55 nats in a chunk",
            ("o", "Aqk", "Akk"), staged(scores=seen_as(ClampedFromTheStart, STAGES.scores))),
    _scores("GA20", "the cumulative gate restarts inside a tile", "sgl-project/sglang-jax#1587",
            "A", f"a pack with tails, {_STRONG}", ("o",),
            staged(scores=seen_as(PaddedRowsAtZero, STAGES.scores), when=packed)),
    _scores("CS5", "the reference row is off by one", "fla-org/fla@0c1c0b65 (issue #77)", "A",
            f"17 tokens or more, {_DEEP}", ("o", "dq", "dk"),
            staged(scores=seen_as(AnchoredOneRowLate, STAGES.scores))),
    _scores("A2", "garbage above the diagonal, masked by multiplication",
            "flashserve/fla-npu@83c90580", "A", _STRONG, ("Aqk", "o"),
            staged(scores=_multiplied_by_the_mask)),
    _scores("A3", "tiles above the diagonal are never written", "fla-org/fla#1070", "B",
            "any call in memory that holds NaN", ("Aqk", "o"),
            staged(scores=_tiles_left_unwritten)),
    _scores("A4", "score tiles built from rows past the end", "flashserve/fla-npu#336,#475,#476",
            "B", "more value than key heads, V > K, a tail that is no multiple of 16", ("o",),
            staged(scores=_with_rows_past_the_end, when=_wide_groups_with_ragged_tails)),
    _scores("A5", "the last chunk of a dense sequence is taken for a full one",
            "inclusionAI/cuLA#43 (b)", "B", "a dense length that is no multiple of 64", ("o",),
            staged(scores=_with_rows_past_the_end, when=dense)),
    _scores("A8", "a tile of the scores is not written", "huawei-csl/megagdn-pto#11", "D",
            "calls repeated", ("Akk", "o"), at_random(0.25, scores=_a_tile_is_missing)),
    _scores("A9", "no row mask on decays of the tail; the scale rounded into q", "fla-org/fla#694",
            "C", f"16-bit inputs; for NaN a tail and {_STRONG}", ("o", "dv", "dg"),
            _scale_before_rounding, dtypes=("bf16", "fp16"), graded=True),
    _scores("A10", "no causal mask at head width 32", "NVIDIA/cudnn-frontend#994", "A", "K = 32",
            ("o", "dg"), staged(scores=_at_width_32)),
    _scores("A11", "rows past the end are NaN, masked after the product",
            "vllm-project/vllm-ascend#10276", "B", "a tail that is no multiple of 16", ("o",),
            staged(wy=_garbage_in_the_tail)),
    _scores("GA21", "exponentiated, then filled: finite forward, 0 * inf backward",
            "huggingface/transformers#48455", "A", _STRONG, ("dq", "dk", "dg"),
            staged(scores=seen_as(DecayDifferences, STAGES.scores))),
    _scores("DESIGN-d", "exp(-cumsum) stored as an operand", "design document", "A", _STRONG,
            ("o",), staged(scores=seen_as(StoredFromTheStart, STAGES.scores))),
    _scores("DESIGN-g", "columns counted from the start of the pack", "design document", "B",
            "a sequence after one whose length is no multiple of 64", ("Aqk", "Akk", "o"),
            per_call(_columns_from_the_pack_start)),
)  # fmt: skip
