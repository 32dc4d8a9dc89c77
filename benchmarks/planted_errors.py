"""Small faults, planted in the error of a conforming kernel:
what a harness must see to be worth its time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.statistics import rms, row_rms


@dataclass(frozen=True)
class Scene:
    """One output of one problem.

    Args:
        exact: float64.
        error: of the kernel in which a fault is planted.
        ensemble: errors of every conforming kernel and sample.
        rng: chooses where.
    """

    exact: Tensor
    error: Tensor
    ensemble: list[Tensor]
    rng: torch.Generator

    def any_of(self, count: int) -> int:
        return int(torch.randint(count, (), generator=self.rng))


def louder(scene: Scene) -> Tensor:
    return 1.3 * scene.error


def louder_than_any(scene: Scene) -> Tensor:
    return 1.3 * max(scene.ensemble, key=rms)


def own_row(scene: Scene) -> Tensor:
    """The error of one row at 4 times the worst that a conforming kernel has in it."""
    worst = torch.stack([row_rms(e) for e in scene.ensemble]).amax(0)
    at = scene.any_of(len(worst))
    return _with_row(scene, at, 4 * float(worst[at]))


def any_row(scene: Scene) -> Tensor:
    """The error of one row at 4 times the worst that a conforming kernel has in any."""
    worst = torch.stack([row_rms(e) for e in scene.ensemble]).amax(0)
    return _with_row(scene, scene.any_of(len(worst)), 4 * float(worst.max()))


def _with_row(scene: Scene, at: int, size: float) -> Tensor:
    error = scene.error.clone()
    noise = torch.randn(error.shape[-1], generator=scene.rng, dtype=torch.float64)
    error.view(-1, error.shape[-1])[at] = size * noise / rms(noise)
    return error


def one_element(scene: Scene) -> Tensor:
    error, worst = scene.error.clone(), max(float(e.abs().max()) for e in scene.ensemble)
    error.view(-1)[scene.any_of(error.numel())] = 4 * worst
    return error


def biased(scene: Scene) -> Tensor:
    return scene.error + 2.0**-9 * scene.exact


FAULTS: Final[dict[str, tuple[Callable[[Scene], Tensor], tuple[str, ...]]]] = {
    "rms at 1.3 times its own": (louder, ("o", "final_state")),
    "rms at 1.3 times the worst conforming": (louder_than_any, ("o", "final_state")),
    "one row at 4 times the worst conforming there": (own_row, ("o", "final_state")),
    "one row at 4 times the worst conforming": (any_row, ("o", "final_state")),
    "one element at 4 times the worst conforming": (one_element, ("o", "final_state")),
    "S_T too large by 2^-9": (biased, ("final_state",)),
}
"""What is planted, and in which outputs."""
