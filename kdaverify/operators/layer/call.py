"""A call of a whole layer: its tensors, and the schedule by which the layer gets them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from torch import Tensor

from oracles.signature import CallSignature, Role, TensorCall, TensorRole

SIGNATURE: Final = CallSignature(
    inputs=(
        TensorRole("hidden", Role.TOKEN, ("B", "T", "D"), "dhidden"),
        TensorRole("attention_mask", Role.TOKEN, ("B", "T"), optional=True),
        TensorRole("cu_seqlens", Role.OFFSETS, ("M",), optional=True),
    ),
    outputs=(TensorRole("out", Role.TOKEN, ("B", "T", "D"), "dout"),),
)
Before = Literal["", "sequence", "reset"]


@dataclass(frozen=True)
class LayerCall(TensorCall):
    """One result of a layer, obtained in one call or in several that share a cache.

    Args:
        hidden: [B, T, D].
        attention_mask: [B, T] of 0 and 1, 0 at padding; each part gets its own columns.
        cu_seqlens: offsets [N + 1] of a pack, B = 1.
        cached: whether a cache is wanted.
        cuts: tokens where the sequence is cut; parts continue from the cache before them.
        before: what the layer was called on before: nothing, another sequence with a cache of its
            own, or another sequence whose cache was then reset and is used again.
        order: of the rows of the batch from the first cut on; () leaves them in place.
        then: a second order, of the rows in the first one, with no call between both.
        alive: whether another sequence has a cache of its own meanwhile, and is called in turns.
        branched: whether another continuation, from a copy of the cache, runs first.
        unwanted: whether the last part wants no cache, and returns out alone.
        severed: the negative control: no cache, or one that is not reset or reordered.
    """

    op: ClassVar = "layer"
    signature: ClassVar = SIGNATURE

    hidden: Tensor
    attention_mask: Tensor | None = None
    cu_seqlens: Tensor | None = None
    cached: bool = False
    cuts: tuple[int, ...] = ()
    before: Before = ""
    order: tuple[int, ...] = ()
    then: tuple[int, ...] = ()
    alive: bool = False
    branched: bool = False
    unwanted: bool = False
    severed: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the schedule is of cuts alone."""
        return not (self.before or self.order)
