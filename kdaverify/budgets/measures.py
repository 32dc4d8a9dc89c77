"""Ways to measure an error where one rounding is all there is, and what the reference ensemble of a
contract makes by the same measure.

The usual statistics are relative to a whole output: an update beside a large state, or a bias
beside its own scatter, is small in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.constants import DEVIATIONS, LARGEST_FACTOR
from kdaverify.budgets.formats import Format
from kdaverify.problems.probes import Measure
from oracles.enclosure import Enclosure
from oracles.tensors import OUTPUTS, SIGNATURE


@dataclass(frozen=True)
class Probed:
    """One output of a probe.

    Args:
        truth: its exact value.
        start: S_0 for S_T, None for o.
        io: the format it is stored in.
    """

    truth: Enclosure
    start: Tensor | None
    io: Format

    @property
    def exact(self) -> Tensor:
        return self.truth.high

    @property
    def moved(self) -> Tensor:
        """What the tokens changed; of o, which starts from nothing, all."""
        return self.exact if self.start is None else self.exact - self.start.double()

    @property
    def spacing(self) -> Tensor:
        """Distance of the numbers around the largest element of a row, at most."""
        return (2 * self.io.unit * self.exact.abs().amax(-1, keepdim=True)).clamp(
            min=self.io.min_normal
        )


@dataclass(frozen=True)
class Ruler:
    """A measure of errors.

    Args:
        about: one line.
        outputs: what it applies to.
        figures: (error, output) -> one or more figures >= 0, each judged by itself.
        least: what the best kernel may show: one rounding of the exact value.
        alike: whether the figures are of like rows, so that none is held below their median.
    """

    about: str
    outputs: tuple[str, ...]
    figures: Callable[[Tensor, Probed], Tensor]
    least: Callable[[Probed], Tensor]
    alike: bool = False

    def allowed(self, at: Probed, rounded: list[Tensor], drawn: list[Tensor]) -> Tensor:
        """The tolerance: 2.5 (1 + 3 deviation / mean) times the ensemble's worst, or a rounding.

        Args:
            rounded, drawn: the output of every reference kernel and every random sample.
        """
        draws, members = (
            torch.stack([self.figures(at.truth.error(output), at) for output in runs])
            for runs in (drawn, rounded)
        )
        mean = draws.mean(0)
        margin = 1 + DEVIATIONS * torch.where(mean > 0, draws.std(0) / mean, 0.0)
        worst = torch.cat((draws, members)).amax(0)
        if self.alike and bool((worst > 0).any()):
            # A row that all of the reference ensemble happen to meet is no better off than its
            # neighbours.
            worst = worst.clamp(min=float(worst[worst > 0].median()))
        return torch.maximum(LARGEST_FACTOR * margin * worst, self.least(at))


def _rows(error: Tensor, size: Tensor) -> Tensor:
    """[rows] norm of the error over the norm of `size`; 0 where there is no size."""
    norms = size.flatten(0, -2).norm(dim=-1)
    return torch.where(norms > 0, error.flatten(0, -2).norm(dim=-1) / norms, 0.0)


def _rounding(at: Probed) -> Tensor:
    return at.io.unit * at.exact


def _mean_relative(error: Tensor, at: Probed) -> Tensor:
    sized = at.exact != 0
    if bool(sized.any()):
        return (error[sized] / at.exact[sized]).mean().abs().reshape(1)
    return error.new_zeros(1)


BOTH, STATE = OUTPUTS, tuple(filter(SIGNATURE.is_state, OUTPUTS))

RULERS: Final[Mapping[Measure, Ruler]] = {
    "spacing": Ruler("error of every element in spacings of its row; 0 where the exact value can be"
                     " stored and every conforming kernel stores it", BOTH,
                     lambda error, at: error.abs() / at.spacing,
                     lambda at: (at.io.round(at.exact) != at.exact).double()),
    "memory": Ruler("error of every row of S_T relative to that row", STATE,
                    lambda error, at: _rows(error, at.exact),
                    lambda at: _rows(_rounding(at), at.exact), alike=True),
    "update": Ruler("error of every row of S_T relative to its change, S_T - S_0", STATE,
                    lambda error, at: _rows(error, at.moved),
                    lambda at: _rows(_rounding(at), at.moved)),
    "bias": Ruler("mean of the signed relative errors of S_T", STATE, _mean_relative,
                  lambda at: at.exact.new_full((1,), at.io.unit)),
}  # fmt: skip
"""Every measure by name."""
