"""Races around the state: read before written, or after overwritten; calls differ."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import torch

from kdaverify.faults.fault import Fault, Setting
from kdaverify.faults.kernel import Outputs, Patch, PatchedPipeline
from kdaverify.faults.patches import at_random, packed, strikes
from kdaverify.faults.state import advanced
from kdaverify.faults.views import LAST, one_of, one_tile, order, sequence, short, transposed
from oracles.chunk import STAGES, Chunk
from oracles.inputs import Inputs

_state = partial(Fault, stage="state", kind="D")


def _final_state_one_chunk_early(
    random: torch.Generator, kernel: PatchedPipeline, x: Inputs
) -> Outputs:
    o, final = kernel(x)
    if not order(x) or not strikes(random, 0.25):
        return o, final
    n = order(x)[int(torch.randint(len(order(x)), (), generator=random))]
    if x.lengths[n] > 64:
        earlier = kernel(sequence(x, n, (x.lengths[n] - 1) // 64 * 64))[1]
    else:
        earlier = x.state[n : n + 1].to(final.dtype)
    stale = one_of(1, final, random) & (torch.arange(x.N) == n)[:, None, None, None]
    return o, torch.where(stale, earlier, final)


def _stale_norms(c: Chunk, random: torch.Generator) -> None:
    # The norm that a key is divided by is that of another row: keys have norms near 1 only on
    # average over what is in flight.
    token = one_of(2, c.tokens.k, random) & one_tile(c.tokens.k, random)
    c.tokens = replace(c.tokens, k=torch.where(token, 0.5 * c.tokens.k, c.tokens.k))
    STAGES.cumsum(c)


def _stale_workspace(c: Chunk, random: torch.Generator) -> None:
    STAGES.state(c)
    c.v_new = torch.where(one_tile(c.v_new, random), c.v_new.roll(1, dims=1), c.v_new)


def _stale_decay(c: Chunk, random: torch.Generator) -> None:
    decay = transposed(c.decay(LAST))
    advanced(c, decay=torch.where(one_tile(decay, random), decay.roll(1, dims=-2), decay))


def _stale_tail(c: Chunk, random: torch.Generator) -> None:
    STAGES.output(c)
    # A tail recomputed from a state that has not arrived: its own part alone.
    stale = one_tile(c.o, random) & short(c)
    c.o = torch.where(stale, c.dot(c.Aqk, c.v_new), c.o)


def _missing_wait(setting: Setting) -> Patch:
    return Patch(forward=partial(_final_state_one_chunk_early, setting.random))


def _key_row_overwritten(c: Chunk, random: torch.Generator) -> None:
    k = c.tokens.k
    half = torch.arange(k.shape[-1], device=k.device) < (k.shape[-1] + 1) // 2
    following = torch.cat((k[..., 1:, :], k[..., -1:, :]), dim=-2)
    c.tokens = replace(c.tokens, k=torch.where(one_tile(k, random) & half, following, k))
    STAGES.cumsum(c)


def _beta_of_the_sequence_before(c: Chunk, random: torch.Generator) -> None:
    beta = c.tokens.beta
    early = one_of(0, beta, random) & (beta != 0)
    c.tokens = replace(c.tokens, beta=torch.where(early, beta.roll(1, dims=0), beta))
    STAGES.cumsum(c)


FAULTS: Final = (
    _state(id="H13", title="the final state is stored one chunk early",
           reference="huawei-csl/megagdn-pto@0bbed65", trigger="calls repeated",
           outputs=("final_state",), patch=_missing_wait),
    _state(id="H20", title="a key row is half overwritten by the next one",
           reference="ikawrakow/ik_llama.cpp#1649", trigger="calls repeated",
           outputs=("o", "final_state"), patch=at_random(0.25, cumsum=_key_row_overwritten)),
    _state(id="H21", title="a key is normalised by a stale sum",
           reference="ohdearquant/lattice#190", trigger="calls repeated",
           outputs=("final_state", "o"), patch=at_random(0.25, cumsum=_stale_norms)),
    _state(id="H22", title="a head reads the workspace of another",
           reference="huawei-csl/megagdn-pto#23", trigger="more than one head, calls repeated",
           outputs=("o",), patch=at_random(0.25, state=_stale_workspace)),
    _state(id="H24", title="decay coefficients are read before they are written",
           reference="tile-ai/tilelang-ascend#494", trigger="a state to decay, calls repeated",
           outputs=("o", "final_state"), patch=at_random(0.25, state=_stale_decay)),
    _state(id="H25", title="beta is that of the sequence before",
           reference="flashserve/fla-npu@c57d7392", trigger="several sequences, calls repeated",
           outputs=("o", "final_state"),
           patch=at_random(0.5, cumsum=_beta_of_the_sequence_before, when=packed)),
    _state(id="H27", title="a tail is computed from what has not arrived",
           reference="flashserve/fla-npu#440,#441", trigger="a pack with tails, one call in ten",
           outputs=("o",), patch=at_random(0.1, output=_stale_tail, when=packed)),
)  # fmt: skip
