"""Faults of w and u (math.md 3.4)."""

from __future__ import annotations

from functools import partial
from typing import Final

import torch

from kdaverify.faults.fault import Fault
from kdaverify.faults.patches import at_random, packed, staged
from kdaverify.faults.views import one_tile
from oracles.chunk import STAGES, Chunk
from oracles.inputs import Inputs

_wy = partial(Fault, stage="wy")
_TILE = 64
_SEED_ROOM = 1.5


def _padded_chunks_overrun(x: Inputs) -> bool:
    # w is stored at 64 rows a chunk in room for the packed tokens and a half more.
    return packed(x) and 64 * sum(-(-length // 64) for length in x.lengths) > _SEED_ROOM * x.T


def _overrun_by_w(c: Chunk) -> None:
    STAGES.wy(c)
    narrow = min(c.w.shape[-1], c.u.shape[-1])
    c.u = torch.cat(
        (torch.cat((c.w[-1:, ..., :narrow], c.u[1:, ..., :narrow])), c.u[..., narrow:]), dim=-1
    )


def _huge_tile(c: Chunk, random: torch.Generator) -> None:
    STAGES.wy(c)
    struck = one_tile(c.u, random)
    c.w, c.u = (torch.where(struck, 1e38 * x, x) for x in (c.w, c.u))


def _operand_clobbered(c: Chunk) -> None:
    STAGES.wy(c)
    if c.u.shape[-1] > _TILE:
        first = c.u[..., :_TILE]
        second = c.dot(first, c.tokens.beta[..., None] * c.tokens.v[..., _TILE:])
        c.u = torch.cat((first, c.store("u", second)), dim=-1)


FAULTS: Final = (
    _wy("WU2", "w of padded chunks overruns u",
        "vllm-project/vllm-ascend#16180,#16087,#16283,#17109", "B",
        "a pack of many short sequences", ("u", "o", "final_state"),
        staged(wy=_overrun_by_w, when=_padded_chunks_overrun)),
    _wy("WU8", "a tile of w and u of 1e38", "vllm-project/vllm#50649 (b)", "D", "calls repeated",
        ("w", "u", "o"), at_random(0.25, wy=_huge_tile)),
    _wy("WU9", "the second tile is multiplied by the product of the first", "fla-org/fla#1113", "D",
        "V above 64", ("u", "o", "dk"), staged(wy=_operand_clobbered), varies=False),
)  # fmt: skip
