"""Faults of the triangular solve (math.md 3.3)."""

from __future__ import annotations

from functools import partial
from typing import Final

import torch

from kdaverify.budgets.solves import by_library, identity
from kdaverify.faults.fault import Fault
from kdaverify.faults.patches import packed, staged
from kdaverify.faults.views import lengths, transposed
from oracles.arithmetic import SUB_BLOCK
from oracles.chunk import STAGES, Chunk

_solve = partial(Fault, stage="solve")


def _series_cut_short(c: Chunk) -> None:
    square = c.dot(c.Akk, c.Akk)
    partly = identity(c.Akk) - c.Akk
    for power in (square, c.dot(square, square)):
        partly = partly + c.dot(partly, power)
    c.R = c.store("R", partly)


def _last_tile_past_the_tensor(c: Chunk) -> None:
    row = torch.arange(c.Akk.shape[-1], device=c.Akk.device)
    end = lengths(c)
    beyond = (row >= end[..., 0]) & (row // SUB_BLOCK == (end[..., 0] - 1) // SUB_BLOCK)
    c.Akk = c.Akk.masked_fill((beyond[..., :, None] | beyond[..., None, :]).tril(-1), torch.nan)
    STAGES.solve(c)


def _from_the_right(c: Chunk) -> None:
    STAGES.wy(c)
    narrow = min(c.w.shape[-1], c.u.shape[-1])
    kb, vb = (c.tokens.beta[..., None] * x for x in (c.tokens.k * c.decay(slice(None)), c.tokens.v))
    c.w = torch.cat((c.w[..., :narrow], kb[..., narrow:]), dim=-1)
    c.u = torch.cat((c.u[..., :narrow], vb[..., narrow:]), dim=-1)


def _upper_triangle(c: Chunk) -> None:
    c.R = c.store("R", by_library(transposed(c.Akk).tril(-1)))


FAULTS: Final = (
    _solve("SO1", "the series for the inverse stops after two doublings",
           "flashserve/fla-npu@7b8e462b,@6541584c", "A", "coherent keys, beta near 1, slow gates",
           ("R", "o", "final_state"), staged(solve=_series_cut_short), graded=True),
    _solve("SO4", "the last diagonal tile is copied whole, past the tensor",
           "flashserve/fla-npu#242,#243,@317e8af1", "B",
           "a pack with a tail that is no multiple of 16, NaN in the memory behind", ("o",),
           staged(solve=_last_tile_past_the_tensor, when=packed)),
    _solve("SO5", "the number of right-hand sides is taken from the other operand",
           "dogkeeper886/ollama37#26 (b)", "A", "K different from V", ("o",),
           staged(wy=_from_the_right), graded=True),
    _solve("SO6", "the upper triangle is solved instead of the lower one",
           "dogkeeper886/ollama37#26 (c)", "A", "two tokens or more", ("R", "o"),
           staged(solve=_upper_triangle), graded=True),
)  # fmt: skip
