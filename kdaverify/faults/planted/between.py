"""Faults of what lies between a forward and its backward: packs with other offsets, and
inputs that are edited.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.faults.fault import with_gradient
from kdaverify.faults.planted.broken_calls import Outputs, Patch, counted, port, right, saved_by
from oracles.inputs import Inputs

SLOTS: Final = 16
LAYERS: Final = 96


def _packed(x: Inputs, read: Callable[[], Tensor]) -> Outputs:
    """The backward of k reads offsets where they are kept."""
    assert x.cu_seqlens is not None
    own = x.cu_seqlens

    def change(dk: Tensor) -> Tensor:
        return dk * (1 + int(not torch.equal(read(), own)))

    return right(replace(x, k=with_gradient(change, x.k)))


def offsets_of_the_latest(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """The backward reads the offsets of the latest pack."""
    if x.cu_seqlens is None:
        return right(x)
    kept["offsets"] = x.cu_seqlens.clone()
    return _packed(x, lambda: kept["offsets"])


def offsets_in_a_ring(slots: int | None) -> Patch:
    """The backward reads offsets in the slot that its forward put them in; equal ones share it.

    Args:
        slots: of the ring; None for as many as there are packs.
    """

    def patch(x: Inputs, kept: dict[Any, Any]) -> Outputs:
        if x.cu_seqlens is None:
            return right(x)
        ring: dict[int, Tensor] = kept.setdefault("ring", {})
        own = x.cu_seqlens.clone()
        slot = next((n for n, other in ring.items() if torch.equal(other, own)), None)
        if slot is None:
            made = kept["made"] = kept.get("made", -1) + 1
            slot = made % slots if slots else made
            ring[slot] = own
        return _packed(x, lambda: ring[slot])

    return patch


def kept_input(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """The backward of k adds what the caller has changed of it since."""
    kept, own = x.k.detach(), x.k.detach().clone()

    def change(dk: Tensor) -> Tensor:
        # NaN in padding is no change.
        return dk + (kept - own).nan_to_num(0.0).to(dk.dtype)

    return right(replace(x, k=with_gradient(change, x.k)))


def ring_of_keys(x: Inputs, kept: dict[Any, Any]) -> Outputs:
    """The backward of k reads k in a ring of 96 buffers for each shape."""
    return saved_by((x.k.shape, x.k.dtype, counted(kept) % LAYERS), x, kept)


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "a backward has the offsets of the latest pack": lambda: port(offsets_of_the_latest),
    "a backward has its offsets in a ring of 16": lambda: port(offsets_in_a_ring(SLOTS)),
    "k is kept for the backward where autograd does not see it": lambda: port(kept_input),
    "k is kept for the backward in a ring of 96 buffers": lambda: port(ring_of_keys),
}
"""By what is wrong."""
