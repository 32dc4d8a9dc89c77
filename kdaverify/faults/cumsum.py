"""Faults of the cumulative gate, and of what is done to gates before it (math.md 3.1)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import torch

from kdaverify.faults.fault import Fault
from kdaverify.faults.patches import at_random, packed, staged
from kdaverify.faults.views import one_tile, pads, valid
from oracles.chunk import STAGES, Chunk

_cumsum = partial(Fault, stage="cumsum")
_WRONG_BLOCK = 32


def _logarithm_of_the_logarithm(c: Chunk) -> None:
    c.tokens = replace(c.tokens, g=torch.where(valid(c), c.tokens.g.log(), c.tokens.g))
    STAGES.cumsum(c)


def _last_row_cleared(c: Chunk, random: torch.Generator) -> None:
    STAGES.cumsum(c)
    last = torch.arange(c.G.shape[-2], device=c.G.device)[:, None] == c.G.shape[-2] - 1
    c.G = c.G.masked_fill(one_tile(c.G, random) & last, 0.0)


def _restarted_in_smaller_blocks(c: Chunk) -> None:
    STAGES.cumsum(c)
    before = c.G[..., _WRONG_BLOCK - 1 : -1 : _WRONG_BLOCK, :]
    later = torch.cat((torch.zeros_like(before[..., :1, :]), before), dim=-2).repeat_interleave(
        _WRONG_BLOCK, dim=-2
    )
    c.G = c.store("G", c.G - later)


def _masked_rows_at_zero(c: Chunk) -> None:
    STAGES.cumsum(c)
    c.G = c.G.masked_fill(pads(c), 0.0)


def _resets_summed(c: Chunk) -> None:
    c.G, c.resets = c.store("G", c.tokens.g.cumsum(-2)), None


FAULTS: Final = (
    _cumsum("GA2", "the kernel takes the logarithm of what is one already",
            "flashinfer-ai/flashinfer#2490", "A", "any gate", ("o", "final_state"),
            staged(cumsum=_logarithm_of_the_logarithm)),
    _cumsum("CS2", "the last row is cleared while it is written back",
            "flashserve/fla-npu@ec8e9e52 (lessons 7.1)", "D", "decay in a chunk, calls repeated",
            ("G", "o", "final_state"), at_random(0.25, cumsum=_last_row_cleared)),
    _cumsum("CS3", "the sum restarts in blocks of another size",
            "flashserve/fla-npu@2f394ab8,@3f8ee79e", "B",
            "a pack with a sequence of more than 32 tokens", ("G", "o"),
            staged(cumsum=_restarted_in_smaller_blocks, when=packed)),
    _cumsum("CS4", "masked rows hold 0 instead of the running sum",
            "primatrix/pallas-kernel@c70ea68", "B",
            "a pack with a length that is no multiple of 64", ("final_state",),
            staged(cumsum=_masked_rows_at_zero, when=packed)),
    _cumsum("GA22", "differences of -inf", "flashserve/fla-npu#543", "A", "a gate of -inf",
            ("o", "final_state"), staged(cumsum=_resets_summed)),
)  # fmt: skip
