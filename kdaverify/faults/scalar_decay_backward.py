"""Faults in the backward of kernels whose channels share a gate."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.eager import EAGER
from kdaverify.budgets.formats import format_of
from kdaverify.budgets.scalar_decay import BACKWARD, whole
from kdaverify.faults.fault import Fault
from kdaverify.faults.kernel import Derive, Patch, PatchedPipeline
from kdaverify.faults.patches import backwards, backwards_per_call, derived
from kdaverify.faults.views import pads, seen_as_backward
from oracles.chunk import Chunk
from oracles.chunk_backward import BACKWARD as OF_CHANNELS
from oracles.chunk_backward import BackwardStages, ChunkGradients
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

_gdn = partial(Fault, operator="gdn", dtypes=("fp32", "bf16", "fp16"))
_TILE = 16
_K_TILE = 32
_backwards = partial(backwards, right=BACKWARD)
_derived = partial(derived, right=BACKWARD)


class _NoPairs(Chunk):
    def pair_decay(self, rows: slice) -> Tensor:
        return torch.zeros_like(Chunk.pair_decay(self, rows))


class _PadsByMultiplication(Chunk):
    """Rows past the end are decayed from a gate of 0 to that of the last row, sign reversed."""

    def decay(self, later: slice, earlier: slice | None = None) -> Tensor:
        right = Chunk.decay(self, later, earlier)
        if earlier is None:
            return right
        return torch.where(pads(self), (-self.G[..., later, :]).exp(), right)


def _inverse_constant(b: ChunkGradients) -> None:
    c = b.c
    seen_as_backward(_NoPairs, BACKWARD.wy_bwd)(b)
    b.c = c


def _state_not_decayed(b: ChunkGradients) -> None:
    after = b.dS
    BACKWARD.state_bwd(b)
    b.dS = b.dS + after * (1 - whole(b.c))


def _total_minus_prefix(b: ChunkGradients) -> None:
    dg = b.dG.sum(-2, keepdim=True) - b.dG.cumsum(-2) + b.dG
    b.dg = b.store("dg", dg.masked_fill(b.c.tokens.g[..., :1].isneginf(), 0.0))


def _tiles_swapped(b: ChunkGradients) -> None:
    BACKWARD.wy_bwd(b)
    k, beta = b.c.tokens.k, b.c.tokens.beta[..., None]
    if k.shape[-2] < 2 * _TILE:
        return
    through = b.dot(b.dAkk, k)
    back = b.dot(b.dAkk.transpose(-1, -2), beta * k)
    rows = torch.arange(k.shape[-2], device=k.device)
    swapped = torch.where(rows < 2 * _TILE, (rows + _TILE) % (2 * _TILE), rows)
    b.dbeta = b.dbeta + b.row_sum((through[..., swapped, :] - through) * k)
    first, second = b.dk.unbind(-1)
    b.dk = torch.stack((first, second + back[..., swapped, :] - back), dim=-1)


def _ungated(b: ChunkGradients) -> None:
    """What passes through w is not in dbeta, and dk is what its memory held: the keys."""
    dw, b.dw = b.dw, torch.zeros_like(b.dw)
    BACKWARD.wy_bwd(b)
    b.dw = dw
    b.dk = torch.stack((b.c.tokens.k, torch.zeros_like(b.dw)), dim=-1)


def _final_state_left_out(_: Inputs) -> BackwardStages:
    """Made for every call: the chunk that a sequence is met in first is its last one."""
    met = [0]

    def dqkwg(b: ChunkGradients) -> None:
        BACKWARD.dqkwg(b)
        c, live = b.c, b.dS.shape[0]
        fresh = torch.arange(live, device=b.dS.device)[:, None, None, None] >= met[0]
        held = whole(c) * c.arithmetic.total((c.h * b.dh).flatten(-2))[..., None, None]
        b.dG = b.dG - held.masked_fill(~(b.last & fresh), 0.0)
        met[0] = live

    return replace(BACKWARD, dqkwg=dqkwg)


def _of_the_first_value_head(derive: Derive, x: Inputs, given: Cotangents) -> Gradients[Tensor]:
    groups = x.HV // x.H
    each = replace(
        x, q=x.q.repeat_interleave(groups, dim=2), k=x.k.repeat_interleave(groups, dim=2)
    )
    found = derive(each, given)
    return replace(found, dq=found.dq[:, :, ::groups], dk=found.dk[:, :, ::groups])


def _tiles_of_keys_overlap(derive: Derive, x: Inputs, given: Cotangents) -> Gradients[Tensor]:
    """What the second tile of keys gives to dg is added at rows shifted by the sequence's start."""
    right = derive(x, given)
    if x.cu_seqlens is None or x.K <= _K_TILE:
        return right
    kernel = PatchedPipeline(
        EAGER.contract(format_of(x.q.dtype).name), Patch(backward=lambda _: OF_CHANNELS)
    )
    wide = kernel.gradients(replace(x, g=x.decays.contiguous()), given).dg
    second = wide[..., _K_TILE:].sum(-1, keepdim=True)
    moved = torch.zeros_like(second)
    for first, length in zip(x.starts, x.lengths, strict=True):
        end = min(first + length, x.T - first)
        if end > first:
            moved[:, 2 * first : first + end] += second[:, first:end]
    return replace(right, dg=right.dg - second + moved)


def _of_the_last_token(derive: Derive, x: Inputs, given: Cotangents) -> Gradients[Tensor]:
    found = derive(x, given)
    ends = [first + length - 1 for first, length in zip(x.starts, x.lengths, strict=True) if length]
    mask = torch.zeros(x.B * x.T, dtype=torch.bool, device=x.q.device)
    mask[ends] = True
    rows = mask.view(x.B, x.T)[..., None]
    kept: dict[str, Any] = {
        name: getattr(found, name) * (rows if name == "dbeta" else rows[..., None])
        for name in ("dq", "dk", "dv", "dg", "dbeta")
    }
    return replace(found, **kept)


FAULTS: Final = (
    Fault("DN-D16", "without gates dk is not written, and dbeta lacks what passes through the keys",
          "fla-org/fla#862, #863", "A", "no gate", ("dk", "dbeta"), _backwards(wy_bwd=_ungated),
          "backward", ("fp32", "bf16", "fp16"), operator="delta"),
    _gdn("GDN-D17", "the gradient of the final state is left out of the gate's",
         "fla-org/fla@31293264", "A", "a loss of the final state", ("dg",),
         backwards_per_call(_final_state_left_out), "backward"),
    _gdn("GDN-D18",
         "partial sums of dg of the second tile of keys are added at rows of another sequence",
         "fla-org/fla@0dfd7f5f", "B", "a pack, K above 32", ("dg",),
         _derived(_tiles_of_keys_overlap), "backward"),
    _gdn("GDN-D19", "the sum of later gradients as total minus prefix", "fla-org/fla#1095, #1150",
         "A", "gradients of very different size in one chunk", ("dg",),
         _backwards(cumsum_bwd=_total_minus_prefix), "backward"),
    _gdn("GDN-D20", "the gradient of the state is carried over a chunk without its decay",
         "tile-ai/TileOPs#632 (1)", "A", "a loss of the final state, or two chunks",
         ("dq", "dk", "dv", "dg", "dbeta", "d_initial_state"),
         _backwards(state_bwd=_state_not_decayed), "backward"),
    _gdn("GDN-D22", "no gradient passes through the triangular inverse", "tile-ai/TileOPs#632 (3)",
         "A", "two tokens or more", ("dk", "dbeta", "dg"), _backwards(wy_bwd=_inverse_constant),
         "backward"),
    _gdn("GDN-D30", "dq and dk of a group are those of its first value head",
         "flashserve/fla-npu@654c9902", "A", "more value heads than key heads", ("dq", "dk"),
         _derived(_of_the_first_value_head), "backward"),
    _gdn("GDN-D39", "only the last token of a sequence gets gradients", "unslothai/unsloth-zoo#754",
         "E", "two tokens or more", ("dq", "dk", "dv", "dg", "dbeta"), _derived(_of_the_last_token),
         "backward"),
    _gdn("GDN-D40", "two tiles of 16 rows are swapped in the backward of w and u",
         "fla-org/fla#984, #988", "B", "chunks of 32 tokens or more", ("dk", "dbeta"),
         _backwards(wy_bwd=_tiles_swapped), "backward"),
    _gdn("GDN-D41", "rows past the end are decayed to the chunk's end, then multiplied by 0",
         "fla-org/fla@4889a8b9", "B",
         "a length that is no multiple of 64, gates that sum to more than 88 nats", ("dg",),
         _backwards(dqkwg=seen_as_backward(_PadsByMultiplication, BACKWARD.dqkwg)), "backward"),
)  # fmt: skip
