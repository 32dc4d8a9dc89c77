"""Faults of the backward between chunks and through the solve (math.md 5)."""

from __future__ import annotations

from functools import partial
from typing import Final

import torch
from torch import Tensor

from kdaverify.faults.fault import Fault
from kdaverify.faults.patches import backwards, backwards_at_random, packed
from kdaverify.faults.views import LAST, one_tile, pads, transposed
from oracles.chunk_backward import BACKWARD, ChunkGradients

_backward = partial(Fault, stage="backward")
_LOW = ("bf16", "fp16")


def narrow(b: ChunkGradients, x: Tensor) -> Tensor:
    """`x` in the format of operands, which it is not stored in."""
    return b.store("operand", x)


def lost(b: ChunkGradients, x: Tensor) -> Tensor:
    """What that rounding takes away, with the opposite sign."""
    return narrow(b, x) - x


class _LastRowOfTheTile(ChunkGradients):
    """Takes the last row of the tile for the last row of the sequence."""

    @property
    def last(self) -> Tensor:
        rows = torch.arange(self.do.shape[-2], device=self.do.device)
        return (rows == len(rows) - 1)[None, None, :, None].expand(len(self.do), 1, -1, 1)


def _inverse_as_a_constant(b: ChunkGradients) -> None:
    BACKWARD.wy_bwd(b)
    b.dAkk = torch.zeros_like(b.dAkk)


def _key_part_never_stored(b: ChunkGradients) -> None:
    BACKWARD.dqkwg(b)
    b.dk = torch.zeros_like(b.dk)


def _carried_by_identity(b: ChunkGradients) -> None:
    BACKWARD.state_bwd(b)
    b.dS = b.store("dS", b.dS + b.dot(transposed(b.c.w), b.dv_new))


def _without_dw(b: ChunkGradients) -> None:
    BACKWARD.dqkwg(b)
    b.dw = torch.zeros_like(b.dw)


def _rounded_before_the_difference(b: ChunkGradients) -> None:
    BACKWARD.state_bwd(b)
    read, written = b.c.scale * b.dot(transposed(b.c.qg), b.do), b.dot(transposed(b.c.w), b.dv_new)
    b.dS = b.store("dS", b.dS + lost(b, read) - lost(b, written))


def _chunk_end_on_the_last_row_of_the_tile(b: ChunkGradients) -> None:
    kind, b.__class__ = b.__class__, _LastRowOfTheTile
    BACKWARD.dqkwg(b)
    b.__class__ = kind
    b.dG = b.dG.masked_fill(pads(b.c), 0.0)  # rows past the sequence are not stored


def _states_of_another_sequence(b: ChunkGradients) -> None:
    h = b.c.h
    b.c.h = h.roll(1, dims=0)
    _chunk_end_on_the_last_row_of_the_tile(b)
    b.c.h = h


def _sums_of_16_bits(b: ChunkGradients) -> None:
    b.dG = narrow(b, b.dG)
    BACKWARD.cumsum_bwd(b)
    b.dg = narrow(b, b.dg)


def _noise_for_a_term(b: ChunkGradients, random: torch.Generator) -> None:
    before = b.dk
    BACKWARD.wy_bwd(b)
    own = b.dk - before
    noise = (
        torch.randn(own.shape, generator=random, dtype=own.dtype).to(own.device)
        * own.square().mean().sqrt()
    )
    b.dk = before + noise
    b.dbeta = b.dbeta.flip(-1)


def _accumulation_dropped(b: ChunkGradients) -> None:
    before = b.dk
    BACKWARD.wy_bwd(b)
    b.dk = b.dk - before


def _decay_of_the_first_head(b: ChunkGradients) -> None:
    dS = b.dS
    BACKWARD.state_bwd(b)
    decay = transposed(b.c.decay(LAST))
    b.dS = b.store("dS", b.dS + dS * (decay[:, :1] - decay))


def _garbage_of_a_bad_configuration(b: ChunkGradients, random: torch.Generator) -> None:
    BACKWARD.intra_bwd(b)
    struck = one_tile(b.dq, random)
    b.dq, b.dk, b.dG = (torch.where(struck, 1e4 + x, x) for x in (b.dq, b.dk, b.dG))


FAULTS: Final = (
    _backward("SO8", "no gradient through the inverse", "tile-ai/TileOPs#632 (3)", "A",
              "two tokens or more", ("dk", "dbeta", "dg"), backwards(wy_bwd=_inverse_as_a_constant),
              graded=True),
    _backward("WU7", "the part of dk that passes through the state is never stored",
              "flashserve/fla-npu@dd2aac76", "B", "a gradient of the state after a chunk", ("dk",),
              backwards(dqkwg=_key_part_never_stored), graded=True),
    _backward("B2", "the gradient of the state is carried by the decay alone",
              "tile-ai/TileOPs#632 (1)", "A", "two chunks, or a gradient of the initial state",
              ("dq", "dk", "dv", "dg", "d_initial_state"),
              backwards(state_bwd=_carried_by_identity), graded=True),
    _backward("B3", "no gradient of w", "tile-ai/TileOPs#632 (2)", "A", "a state before a chunk",
              ("dk", "dbeta", "dg"), backwards(dqkwg=_without_dw), graded=True),
    _backward("B10", "two parts of dh are rounded before they are subtracted",
              "flashserve/fla-npu#569 (b)", "C", "16-bit inputs, two chunks or an initial state",
              ("dg", "d_initial_state"), backwards(state_bwd=_rounded_before_the_difference),
              dtypes=_LOW, graded=True),
    _backward("B17", "the chunk's end goes to a row past the sequence", "fla-org/fla#1143", "B",
              "a length that is no multiple of 64", ("dg",),
              backwards(dqkwg=_chunk_end_on_the_last_row_of_the_tile), graded=True),
    _backward("B18", "the gate's gradient is summed in 16 bits", "fla-org/fla#29", "C",
              "16-bit inputs", ("dg",), backwards(cumsum_bwd=_sums_of_16_bits), dtypes=_LOW,
              graded=True),
    _backward("B19", "a term of the WY backward is noise", "fla-org/fla#984,#988", "D",
              "one warp count of one compiler", ("dk", "dbeta"),
              backwards_at_random(0.5, wy_bwd=_noise_for_a_term)),
    _backward("B21", "an accumulation is fused away",
              "fla-org/fla#687,#638; triton-lang/triton#8695", "D",
              "a gradient of the state after a chunk", ("dk",),
              backwards(wy_bwd=_accumulation_dropped), varies=False, graded=True),
    _backward("L6", "a tuning configuration writes outside", "fla-org/fla#807, #1109", "F",
              "rare: one call in ten", ("dq", "dk", "dg"),
              backwards_at_random(0.1, intra_bwd=_garbage_of_a_bad_configuration), varies=True),
    _backward("C1", "the gradient of the state decays by the gates of the first head",
              "fla-org/fla#781 (issue #1115)", "B", "two heads, two chunks or an initial state",
              ("dk", "dv", "dg", "dbeta"), backwards(state_bwd=_decay_of_the_first_head),
              graded=True),
    _backward("DESIGN-f", "one stage of the backward ignores the offsets", "design document", "B",
              "a pack of several sequences", ("dq", "dk", "dg"),
              backwards(dqkwg=_states_of_another_sequence, when=packed)),
)  # fmt: skip
