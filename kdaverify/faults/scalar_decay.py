"""Faults in the forward of kernels whose channels share a gate: Gated DeltaNet and DeltaNet."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.scalar_decay import FORWARD, to_each, to_end
from kdaverify.faults.decays import FromTheStart, WithoutZeroDifferences
from kdaverify.faults.fault import Fault, Make
from kdaverify.faults.patches import per_call, staged
from kdaverify.faults.views import seen_as, straight, transposed, with_tokens
from oracles.chunk import Chunk, Stages
from oracles.inputs import Inputs

_gdn = partial(Fault, operator="gdn", dtypes=("fp32", "bf16", "fp16"))
_HEAD = 32


def _pairs_as(kind: type[Chunk]) -> Make:
    """The stages that read decays between two tokens, on a chunk that forms them as `kind` does."""
    scores, output = seen_as(kind, FORWARD.scores), seen_as(kind, FORWARD.output)
    return staged(right=FORWARD, scores=scores, output=output)


def _masked_by_head_size(c: Chunk) -> None:
    """For keys of 32 the token that follows takes part in the output."""
    if c.tokens.k.shape[-1] != _HEAD:
        FORWARD.output(c)
        return
    G = c.G[..., :1]
    size = G.shape[-2]
    beyond = torch.ones(size, size, dtype=torch.bool, device=G.device).triu(2)
    decay = c.arithmetic.exp((G - transposed(G)).masked_fill(beyond, -torch.inf))
    if c.resets is not None:
        crossed = c.resets[..., :1] > transposed(c.resets[..., :1])
        decay = decay.masked_fill(crossed, 0.0)
    c.Aqk = c.dot(c.tokens.q, transposed(c.tokens.k)) * decay
    inter = to_each(c) * c.dot(c.tokens.q, c.h)
    c.o = c.store("o", c.scale * (inter + c.dot(c.store("Aqk", c.Aqk), c.v_new)))


def _last_gate_of_another_row(c: Chunk) -> None:
    c.h = c.store("h", c.S)
    new = c.u - c.dot(c.w, c.h)
    c.v_new = c.store("v_new", new)
    rows = c.G.shape[-2] - 1 - 2 * (3 - torch.arange(c.S.shape[-1], device=c.S.device) % 4)
    carried = c.S * c.arithmetic.exp(c.G[..., rows.clamp(min=0), :1]).transpose(-1, -2)
    c.S = c.store("S", carried + _written(c, new * to_end(c)))


def _decayed_along_values(c: Chunk) -> None:
    c.h = c.store("h", c.S)
    new = c.u - c.dot(c.w, c.h)
    c.v_new = c.store("v_new", new)
    columns = torch.arange(new.shape[-1], device=new.device) % new.shape[-2]
    c.S = c.store(
        "S",
        c.S * c.decay(slice(-1, None))[..., :1]
        + _written(c, new * transposed(to_end(c)[..., columns, :])),
    )


def _written(c: Chunk, decayed: Tensor) -> Tensor:
    return c.dot(transposed(c.tokens.k), c.store("v_decayed", decayed))


def _second_logarithm(c: Chunk) -> None:
    FORWARD.cumsum(other := with_tokens(c, g=c.tokens.g.log()))
    c.G, c.resets = other.G, other.resets


def _alpha_in_16_bits(c: Chunk) -> None:
    alpha = c.tokens.g.exp()
    narrow = straight(alpha, FORMATS["bf16"].round(alpha))
    FORWARD.cumsum(other := with_tokens(c, g=narrow.log()))
    c.G, c.resets = other.G, other.resets


def _gates_of_the_chunk_before(_: Inputs) -> Stages:
    """Made for every call: what it keeps is of the chunk before."""
    kept: list[Tensor] = []

    def cumsum(c: Chunk) -> None:
        FORWARD.cumsum(c)
        own = c.G
        if kept:
            live, rows = own.shape[0], own.shape[-2]
            c.G = kept.pop()[:live, ..., :rows, :]
        kept.append(own)

    return replace(FORWARD, cumsum=cumsum)


FAULTS: Final = (
    _gdn("GDN-D1", "pairs without any decay between them vanish", "fla-org/fla#104, #389, #463",
         "A", "gates of exactly 0", ("o", "final_state"), _pairs_as(WithoutZeroDifferences),
         "scores"),
    _gdn("GDN-D2", "a log gate is taken for the decay itself: it goes through a second logarithm",
         "flashinfer-ai/flashinfer#2490", "A", "any gate", ("o", "final_state"),
         staged(right=FORWARD, cumsum=_second_logarithm), "cumsum"),
    _gdn("GDN-D3",
         "the decay of the chunk's end is read up to 6 rows early, by column of the state",
         "flashinfer-ai/flashinfer#3156, #4133, #4311", "B", "two chunks, a state",
         ("o", "final_state"), staged(right=FORWARD, state=_last_gate_of_another_row), "state"),
    _gdn("GDN-D5", "decays between tokens as exp(G_i) exp(-G_j)", "pytorch/executorch#21417", "A",
         "gates that sum to more than 88 nats in a chunk", ("o", "final_state"),
         _pairs_as(FromTheStart), "scores"),
    _gdn("GDN-D9", "a chunk takes the cumulative gates of the chunk before",
         "ggml-org/llama.cpp#19305, #19321", "B", "more than one chunk", ("o", "final_state"),
         per_call(_gates_of_the_chunk_before), "cumsum"),
    _gdn("GDN-D25", "the causal mask is one column late for keys of 32",
         "NVIDIA/cudnn-frontend#994", "B", "K = 32", ("o",),
         staged(right=FORWARD, output=_masked_by_head_size), "output"),
    _gdn("GDN-D32", "what a chunk writes is decayed along the values instead of the tokens",
         "tile-ai/tilelang-ascend#875 (review)", "A", "two tokens or more", ("final_state",),
         staged(right=FORWARD, state=_decayed_along_values), "state"),
    _gdn("GDN-D34", "the decay comes in 16 bits: above 0.998 it is 1",
         "ml-explore/mlx-swift-lm#317; osaurus-ai/vmlx-swift#433", "C", "slow gates",
         ("o", "final_state"), staged(right=FORWARD, cumsum=_alpha_in_16_bits), "cumsum"),
)  # fmt: skip
