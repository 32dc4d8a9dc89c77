"""Faults of the backward inside a chunk (math.md 5) and of gradients summed over heads."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import torch

from kdaverify.faults.backward import lost
from kdaverify.faults.decays import AnchoredOnce, MaskedByMultiplication, PaddedRowsAtZero
from kdaverify.faults.fault import Fault
from kdaverify.faults.patches import backwards, backwards_per_call, packed, staged
from kdaverify.faults.views import pads, seen_as_backward
from oracles.chunk import STAGES, Chunk
from oracles.chunk_backward import BACKWARD, BackwardStages, ChunkGradients
from oracles.inputs import Inputs

_pairs = partial(Fault, stage="backward")
_LOW = ("bf16", "fp16")
_STALE = 1e4


def _diagonal_by_row_and_by_column(b: ChunkGradients) -> None:
    q, k, before = b.c.tokens.q, b.c.tokens.k, b.dq
    own = b.dAqk.diagonal(dim1=-2, dim2=-1)[..., None] * q * k
    BACKWARD.intra_bwd(b)
    # The pair (i, i) is in both sums, which are rounded apart before they are subtracted.
    row, column = q * (b.dq - before), own
    b.dG = b.dG + lost(b, row) - lost(b, column)


def _columns_through_16_bits(b: ChunkGradients) -> None:
    before = b.dk
    BACKWARD.intra_bwd(b)
    b.dG = b.dG - lost(b, b.c.tokens.k * (b.dk - before))


def _stale_rows_in_the_tail(b: ChunkGradients) -> None:
    tokens, dAqk, tail = b.c.tokens, b.dAqk, pads(b.c)
    b.c.tokens = replace(tokens, q=torch.where(tail, tokens.k[..., :1, :], tokens.q))
    b.dAqk = torch.where(tail, torch.full_like(dAqk, _STALE).tril(), dAqk)
    BACKWARD.intra_bwd(b)
    b.c.tokens, b.dAqk = tokens, dAqk
    b.dG = b.dG.masked_fill(tail, 0.0)


def _last_head_of_the_group(x: Inputs) -> BackwardStages:
    group = x.HV // x.H
    last = torch.arange(x.HV, device=x.q.device)[:, None, None] % group == group - 1

    def intra_bwd(b: ChunkGradients) -> None:
        BACKWARD.intra_bwd(b)
        b.dq, b.dk = (gradient.masked_fill(~last, 0.0) for gradient in (b.dq, b.dk))

    return replace(BACKWARD, intra_bwd=intra_bwd)


def _graph_cut(c: Chunk) -> None:
    STAGES.wy(c)
    c.kg = c.store("kg", c.tokens.k.detach() * c.decay(slice(-1, None), slice(None)))


FAULTS: Final = (
    _pairs("A12", "the backward masks decays by multiplication", "fla-org/fla@6cc3736b", "A",
           "gates that sum to more than 88 nats in 16 tokens", ("dq", "dk"),
           backwards(intra_bwd=seen_as_backward(MaskedByMultiplication, BACKWARD.intra_bwd))),
    _pairs("B4", "pairs (i, i) go through two rounded sums", "meta-pytorch/attention-gym#461", "C",
           "16-bit inputs, saturated gates", ("dg",),
           backwards(intra_bwd=_diagonal_by_row_and_by_column), dtypes=_LOW, graded=True),
    _pairs("B8", "one anchor for a whole chunk of the backward", "flashserve/fla-npu#448", "A",
           "gates that sum to more than 88 nats in half a chunk", ("dq", "dk", "dbeta", "dg"),
           backwards(intra_bwd=seen_as_backward(AnchoredOnce, BACKWARD.intra_bwd))),
    _pairs("B9", "tail rows of the backward are not cleared", "flashserve/fla-npu#544,#553", "B",
           "a pack with a length that is no multiple of 64", ("dk", "dg"),
           backwards(intra_bwd=_stale_rows_in_the_tail, when=packed)),
    _pairs("B11", "a matrix is transposed through 16 bits", "QwenLM/FlashQLA#28", "C",
           "16-bit inputs", ("dg",), backwards(intra_bwd=_columns_through_16_bits), dtypes=_LOW,
           graded=True),
    _pairs("B16", "decays of padded rows overflow", "fla-org/fla@4889a8b9", "A",
           "a length that is no multiple of 64, gates that sum to more than 88 nats", ("dk",),
           backwards(intra_bwd=seen_as_backward(PaddedRowsAtZero, BACKWARD.intra_bwd))),
    _pairs("B24", "the graph is cut on the way of the keys to the state", "fla-org/fla#875", "A",
           "a gradient of the state after a chunk", ("dk",), staged(wy=_graph_cut)),
    _pairs("B30", "value heads that share a key head are not summed", "flashserve/fla-npu@654c9902",
           "A", "more value than key heads", ("dq", "dk"),
           backwards_per_call(_last_head_of_the_group)),
)  # fmt: skip
