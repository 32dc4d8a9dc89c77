"""The forms in which operators take their gates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from oracles.codecs import LN_2
from oracles.inputs import Inputs


@dataclass(frozen=True)
class GateForm:
    """A form of the log decays.

    Args:
        said: in words.
        cumulated: summed from the start of every chunk, not one token's.
        unit: what one stands for, in nats.
    """

    said: str
    cumulated: bool
    unit: float

    def hand(self, inputs: Inputs, chunk_size: int) -> Tensor:
        """The gates of a call in this form, computed in float64 and rounded once to their dtype."""
        # On the host: float64 is slow or absent on an NPU.
        g = inputs.g.detach().cpu().double()
        given = _summed(g, inputs, chunk_size) if self.cumulated else g
        return (given / self.unit).to(inputs.g.dtype).to(inputs.g.device)

    def read(self, given: Tensor, inputs: Inputs, chunk_size: int) -> Tensor:
        """The log decays [B, T, HV, K], in float64, that `given` means to a kernel of this form."""
        meant = given.detach().cpu().double() * self.unit
        return (_differences(meant, inputs, chunk_size) if self.cumulated else meant).to(
            given.device
        )


NATURAL: Final = GateForm("natural log, one token's", cumulated=False, unit=1.0)
LOG2: Final = GateForm("log2, one token's", cumulated=False, unit=LN_2)
CUMULATED_LOG2: Final = GateForm(
    "log2, summed from the start of the chunk", cumulated=True, unit=LN_2
)
CUMULATED_NATURAL: Final = GateForm(
    "natural log, summed from the start of the chunk", cumulated=True, unit=1.0
)
FORMS: Final = (NATURAL, LOG2, CUMULATED_LOG2, CUMULATED_NATURAL)


def through(form: GateForm, inputs: Inputs, chunk_size: int) -> Inputs:
    """The call with the gates that a kernel gets when handed over in `form`, rounded."""
    return replace(inputs, g=form.read(form.hand(inputs, chunk_size), inputs, chunk_size))


def _summed(g: Tensor, inputs: Inputs, chunk_size: int) -> Tensor:
    rows = g.flatten(0, 1)
    summed = rows.clone()
    for chunk in _chunks(inputs, chunk_size):
        summed[chunk] = rows[chunk].cumsum(0)
    return summed.view_as(g)


def _differences(G: Tensor, inputs: Inputs, chunk_size: int) -> Tensor:
    rows = G.flatten(0, 1)
    differences = rows.clone()
    for chunk in _chunks(inputs, chunk_size):
        differences[chunk] = torch.diff(rows[chunk], dim=0, prepend=torch.zeros_like(rows[:1]))
    return differences.view_as(G)


def _chunks(inputs: Inputs, size: int) -> Iterator[slice]:
    """The rows of every chunk in the [B * T] token axis."""
    for start, length in zip(inputs.starts, inputs.lengths, strict=True):
        for first in range(start, start + length, size):
            yield slice(first, min(first + size, start + length))
