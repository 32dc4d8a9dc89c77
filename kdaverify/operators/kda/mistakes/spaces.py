"""In how many ways a tensor can be wrong: by a factor, row or column factors, elements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kdaverify.operators.kda.mistakes.changes import Change, Kind
from kdaverify.operators.kda.mistakes.places import Place
from kdaverify.operators.kda.mistakes.quantities import Quantities
from oracles.inputs import Inputs

STEP: Final = 2.0**-18
"""Of the differences that derivatives are made of: outputs are linear in most tensors, smooth in
all."""
STRICT: Final = ("Akk", "R", "dAkk")
"""Matrices whose diagonal no kernel stores."""


@dataclass(frozen=True)
class ErrorSpace:
    """Ways in which a tensor can be wrong that are added up.

    Args:
        words: what they are, in words.
        basis: [unknowns, ...] like the tensor of one head.
        factors: whether they multiply the tensor; else they are added to it.
    """

    words: str
    basis: Tensor
    factors: bool

    @property
    def unknowns(self) -> int:
        return len(self.basis)

    def moved(self, delta: Tensor, one: int | None, head: int, group: int) -> Change:
        """The tensor moved by delta [heads, unknowns], one unknown more in a head per group."""

        def apply(x: Tensor, _: Quantities) -> Tensor:
            by = torch.einsum("hu,u...->h...", delta, self.basis)
            if one is not None:
                by[head::group] += STEP * self.basis[one]
            return x + (x * by if self.factors else by)

        return Change("moved", apply)


_AXES: Final = {
    Kind.KEYS: ("token", "channel"),
    Kind.GATES: ("token", "channel"),
    Kind.VALUES: ("token", "column"),
    Kind.MATRIX: ("later token", "earlier token"),
    Kind.STATE: ("row", "column"),
    Kind.SCALAR: ("token",),
}


def spaces(place: Place, call: Inputs, rows: int) -> Iterator[ErrorSpace]:
    """Those of a tensor, the fewest unknowns first.

    Args:
        rows: of a chunk; those past the end of the sequence are none of the unknowns.
    """
    kind, inside = place.kind, torch.arange(rows) < call.T
    shape = {
        Kind.KEYS: (rows, call.K),
        Kind.GATES: (rows, call.K),
        Kind.VALUES: (rows, call.V),
        Kind.MATRIX: (rows, rows),
        Kind.STATE: (call.K, call.V),
        Kind.SCALAR: (rows,),
    }[kind]
    free = torch.ones(shape, dtype=torch.bool)
    if kind is not Kind.STATE:
        free &= inside.view(-1, *[1] * (len(shape) - 1))
    if kind is Kind.MATRIX:
        free = (free & inside).tril(-1 if place.name in STRICT else 0)
    yield ErrorSpace("one factor", free[None].double(), factors=True)
    for axis, noun in enumerate(_AXES[kind]):
        if len(shape) > 1:
            lines = torch.eye(shape[axis], dtype=torch.bool).view(
                -1, *(shape[axis] if i == axis else 1 for i in range(len(shape)))
            )
            basis = (lines & free).double()
            yield ErrorSpace(
                f"a factor for every {noun}", basis[basis.flatten(1).any(1)], factors=True
            )
    every = torch.zeros(int(free.sum()), *shape, dtype=torch.float64)
    every[(torch.arange(len(every)), *free.nonzero(as_tuple=True))] = 1.0
    yield ErrorSpace("", every, factors=False)
