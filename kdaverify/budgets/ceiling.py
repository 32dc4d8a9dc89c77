"""The a-priori ceiling: an error of an element that no conforming kernel of a contract can make.

The reference ensemble estimates what conforming kernels do; this bounds what they can do. It
follows from the standard model of rounded arithmetic and from the oracle's own matrices, and needs
no emulation: a tolerance that came out too large by mistake still has it above.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final, Protocol

import torch
from torch import Tensor

from kdaverify.budgets.ceiling_chunks import chunk_ceiling
from kdaverify.budgets.ceiling_roundings import SOURCES, Roundings, norm
from kdaverify.budgets.ceiling_tokens import token_ceiling
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.ensemble import chunk_sizes
from kdaverify.budgets.formats import Format
from kdaverify.budgets.parts import Outputs
from oracles.enclosure import Enclosure
from oracles.inputs import Inputs
from oracles.tensors import OUTPUTS

NEAR: Final = 8.0
"""Errors of up to so many times the bound are explained: of a larger one no rounding is the cause.
One explanation takes as long as eight bounds, and half of the time of a session that rejects, where
every failing output had one."""


class ErrorBound(Protocol):
    """Proven bound on the error of a conforming kernel, for each element of an output."""

    def used(self, error: Tensor, truth: Enclosure, fmt: Format) -> Element:
        """The element whose error is the largest fraction of its bound."""
        ...

    def explain(self, at: int, error: float) -> str:
        """The bound of an element in words; "" where there is none."""
        ...


@dataclass(frozen=True)
class Ceilings:
    """The proven bounds of both outputs of one call, computed when they are needed.

    Args:
        inputs: the call.
        contract, io: the arithmetic declared.
        cuts: tokens at which the run is cut and resumed.
    """

    inputs: Inputs
    contract: Contract
    io: Format
    cuts: tuple[int, ...] = ()

    @cached_property
    def declared(self) -> dict[str, Tensor]:
        """Bounds of every element of o and S_T, by name, for chunks of the declared size."""
        return self._bounds(chunk_sizes(self.contract)[:1], Roundings(self.contract, self.io))

    @cached_property
    def every(self) -> dict[str, Tensor]:
        """The largest over the chunk sizes that conform."""
        smaller = self._bounds(chunk_sizes(self.contract)[1:], Roundings(self.contract, self.io))
        return {
            name: torch.maximum(bound, smaller.get(name, bound))
            for name, bound in self.declared.items()
        }

    def sources(self, output: str, at: int) -> dict[str, float]:
        """What every error source alone allows of an element, in chunks of the declared size."""
        sizes = chunk_sizes(self.contract)[:1]
        return {
            x: float(
                self._bounds(sizes, Roundings(self.contract, self.io, x))[output].flatten()[at]
            )
            for x in SOURCES
        }

    @torch.inference_mode()
    def _bounds(self, sizes: tuple[int, ...], roundings: Roundings) -> dict[str, Tensor]:
        each = [self._of_size(size, roundings) for size in {*sizes}]
        return {
            name: torch.stack(bounds).amax(0)
            for name, bounds in zip(OUTPUTS, zip(*each, strict=True), strict=False)
        }

    def _of_size(self, size: int, roundings: Roundings) -> Outputs:
        x, bounds, state = self.inputs, list[Tensor](), self.inputs.state.double()
        rounded = (self.contract.carry.round(state) - state).abs()
        if not any(x.lengths):
            return torch.zeros_like(x.v, dtype=torch.float64), rounded
        carried = state, rounded, norm(rounded, -2)
        for first, end in pairwise((0, *self.cuts, x.T)):
            if first == end:
                continue
            part = x.span(first, end, None) if self.cuts else x
            if self.contract.form == "recurrent":
                carried, o = token_ceiling(part, roundings, carried)
            else:
                carried, o = chunk_ceiling(part, roundings, size, carried)
            bounds.append(o)
        return torch.cat(bounds, dim=1), carried[1]


@dataclass(frozen=True)
class Ceiling:
    """The ceiling of one output.

    Args:
        of: the call's; output: "o" or "final_state".
    """

    of: Ceilings
    output: str

    def used(self, error: Tensor, truth: Enclosure, fmt: Format) -> Element:
        """The element with the largest fraction of its ceiling. One rounding always passes.

        Larger chunks come first: only where an element is above their ceiling do the smaller ones
        matter.

        Args:
            error: kernel - exact; what the oracle's radius may explain of it does not count.
            truth: the exact output.
            fmt: format the output is stored in.
        """
        excess = (error.abs() - truth.radius).clamp(min=0.0)
        excess = excess.masked_fill(excess <= fmt.unit * truth.high.abs(), 0.0)
        found = worst_element(excess, self.of.declared[self.output])
        return found if found.ratio <= 1 else worst_element(excess, self.of.every[self.output])

    def explain(self, at: int, error: float) -> str:
        """An element's bound and, where the error is a little above, its largest source.

        Args:
            at: place in the flattened output.
            error: its absolute error.
        """
        bound = float(self.of.every[self.output].flatten()[at])
        if not math.isfinite(bound):
            return ""
        said = f"proven error bound {bound:.3g} at this element"
        if not bound < error <= NEAR * bound:
            return said
        parts = self.of.sources(self.output, at)
        return f"{said} (dominant term: {SOURCES[max(parts, key=lambda name: parts[name])]})"


@dataclass(frozen=True)
class Element:
    """One element of an output: its flat place, its error, its ceiling, and their ratio."""

    at: int
    error: float
    ceiling: float
    ratio: float


def worst_element(excess: Tensor, bound: Tensor) -> Element:
    """The element whose error is the largest fraction of its bound."""
    ratios = torch.where(excess == 0, 0.0, excess / bound).nan_to_num(nan=0.0, posinf=math.inf)
    at = int(ratios.argmax())
    error, ceiling, ratio = (float(x.flatten()[at]) for x in (excess, bound, ratios))
    return Element(at, error, ceiling, ratio)
