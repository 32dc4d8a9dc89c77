"""The token layouts of AscendC operators, in terms of our conventions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from oracles.inputs import Inputs
from oracles.tensors import TOKENS


@dataclass(frozen=True)
class Layout:
    """One value of the operators' `layout` argument.

    Args:
        name: as the operator spells it.
        conventional: the layout of `Conventions` that orders the axes the same way.
        rank3: without a batch axis; the batch entries become the sequences of a pack.
    """

    name: str
    conventional: str
    rank3: bool

    def call(self, inputs: Inputs) -> Inputs:
        """The call as this layout can express it, in the same memory."""
        return packed(inputs) if self.rank3 else inputs

    def strip(self, tensor: Tensor) -> Tensor:
        """The tensor of a converted call without the batch axis if this layout has none; a view."""
        return tensor.squeeze(0) if self.rank3 else tensor


LAYOUTS: Final[Mapping[str, Layout]] = {
    layout.name: layout
    for layout in (
        Layout("BSND", "bthd", rank3=False),
        Layout("BNSD", "bhtd", rank3=False),
        Layout("TND", "bthd", rank3=True),
        Layout("NTD", "bhtd", rank3=True),
    )
}


def packed(inputs: Inputs) -> Inputs:
    """The same call with B = 1 and offsets, batch entries end to end; views where contiguous."""
    if inputs.cu_seqlens is not None:
        return inputs
    flat = {name: getattr(inputs, name).flatten(0, 1)[None] for name in TOKENS}
    offsets = torch.arange(inputs.B + 1, dtype=torch.int32, device=inputs.q.device) * inputs.T
    return replace(inputs, **flat, cu_seqlens=offsets)


def chunk_indices(inputs: Inputs, chunk_size: int) -> tuple[int, ...]:
    """Flat (sequence, local chunk) pairs of a pack, sequence-major, as the operators require."""
    counts = [-(-length // chunk_size) for length in inputs.lengths]
    return tuple(
        i
        for sequence, count in enumerate(counts)
        for chunk in range(count)
        for i in (sequence, chunk)
    )
