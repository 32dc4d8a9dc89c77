"""Directions in which inputs are moved: signed, random, over all, exactly representable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.problems.portable import Stream
from kdaverify.problems.problem import Problem
from kdaverify.problems.tensors import rounded
from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS

# Every kernel takes gates down to here; a problem with deeper ones shows that this kernel takes
# those.
MILDEST_LOWEST_GATE: Final = -1.0


@dataclass(frozen=True)
class Pair:
    """A call moved both ways along a direction; the derivative is along up - down, as stored."""

    up: Inputs
    down: Inputs


def pair(
    problem: Problem, number: int, step: float, names: Iterable[str] = tuple(GRADIENTS.values())
) -> Pair:
    """The problem's inputs moved by `step` of their size up and down, signs at random.

    Gates move by `step` nats and stay at most 0, so an element at 0 only falls and the difference
    is one-sided there; -inf stays. Betas stay in the range that the problem's own have, [0, 1]
    where they are all one; where they are at its end, one-sided likewise.

    Args:
        number: of the direction; signs follow from it, the seed and the name of the tensor.
        names: the inputs that are moved; the others stay.
    """
    inputs = problem.inputs()
    given = {name: getattr(inputs, name) for name in names if inputs.holds(name)}
    by_sign = {
        sign: {name: _moved(problem, number, name, x, sign * step) for name, x in given.items()}
        for sign in (1, -1)
    }
    return Pair(replace(inputs, **by_sign[1]), replace(inputs, **by_sign[-1]))


def _moved(problem: Problem, number: int, name: str, x: Tensor, step: float) -> Tensor:
    sign = torch.tensor(
        1.0 - 2.0 * Stream(problem.seed, "direction", number, name).integers(2, *x.shape)
    )
    moved = x.double() + step * _size(name, x) * sign
    low, high = _range(name, x)
    return rounded(moved.clamp(low, high).where(x.isfinite(), x.double()).numpy(), x.dtype)


def _size(name: str, x: Tensor) -> float:
    """What the step is relative to: the tensor's rms; 1 where it is 0, and for exponents."""
    size = 1.0 if name == "g" else float(x.double().square().mean().sqrt()) if x.numel() else 1.0
    return size or 1.0


def _range(name: str, x: Tensor) -> tuple[float, float]:
    if not x.numel() or name not in ("g", "beta"):
        return -torch.inf, torch.inf
    finite = x.double()[x.isfinite()]
    low, high = (float(finite.min()), float(finite.max())) if finite.numel() else (0.0, 0.0)
    if name == "g":
        return min(low, MILDEST_LOWEST_GATE), 0.0
    return (low, high) if low < high else (0.0, max(1.0, high))
