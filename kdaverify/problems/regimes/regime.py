"""A named way to draw one tensor, and the distribution that it is sampled from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from kdaverify.problems.portable import Array, Integers, Stream

if TYPE_CHECKING:
    from kdaverify.problems.problem import Problem

Drawn = TypeVar("Drawn")


@dataclass(frozen=True)
class Draw:
    """The random numbers of one tensor of one problem.

    Args:
        problem: gives sizes, sequences, dtype and seed.
        tensor: names the streams, so that no tensor moves another one.
    """

    problem: Problem
    tensor: str

    def stream(self, *purpose: object) -> Stream:
        return Stream(self.problem.seed, self.tensor, *purpose)

    def normal(self, purpose: str, *shape: int) -> Array:
        """[B, T, *shape]; a longer T begins with the tokens of a shorter one."""
        p = self.problem
        return np.stack([self.stream(purpose, b).normal(p.T, *shape) for b in range(p.B)])

    def uniform(self, purpose: str, *shape: int) -> Array:
        """[B, T, *shape]; a longer T begins with the tokens of a shorter one."""
        p = self.problem
        return np.stack([self.stream(purpose, b).uniform(p.T, *shape) for b in range(p.B)])

    def integers(self, purpose: str, below: int, *shape: int) -> Integers:
        """[B, T, *shape]; a longer T begins with the tokens of a shorter one."""
        p = self.problem
        return np.stack([self.stream(purpose, b).integers(below, p.T, *shape) for b in range(p.B)])


@dataclass(frozen=True)
class Regime(Generic[Drawn]):
    """A named way to draw one axis of a problem.

    Args:
        name: what a problem calls it.
        exposes: one line, the faults it can reveal (ids of the fault catalogue).
        draw: float64 values before they are rounded to the problem's dtype.
        weight: how often random problems take it, relative to its axis; 0 if named only.
    """

    name: str
    exposes: str
    draw: Callable[[Draw], Drawn]
    weight: int = 1


def table(*regimes: Regime[Drawn]) -> dict[str, Regime[Drawn]]:
    """Regimes by name, simplest first: failures shrink towards the first."""
    names = [regime.name for regime in regimes]
    if len(set(names)) < len(names):
        raise ValueError(f"regimes: wanted distinct names, got {names}; rename one")
    return {regime.name: regime for regime in regimes}
