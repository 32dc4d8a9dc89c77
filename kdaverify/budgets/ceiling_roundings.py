"""What one rounding of a conforming kernel may cost: the units that ceilings are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.contract import Contract
from kdaverify.budgets.formats import Format
from kdaverify.budgets.score_blocks import LARGEST_EXPONENT
from oracles.gate_activation import activation_of

SOURCES: Final = {
    "gates": "gates: sums and exponentials",
    "scores": "scores: Aqk and Akk",
    "solve": "solve: R",
    "wy": "wy: beta k, beta v, w and u",
    "state": "state: what its roundings carried along",
    "output": "output: products of qg and Aqk",
    "result": "rounding of the result",
}
"""Where errors are made, by stage, in the words of a verdict."""

# Roundings of an exponential beside those of its argument: approximate units err by four, each of
# two factors.
EXPONENTIAL = 16
# Roundings of the operands that meet in a product, beside storage.
PRODUCTS = 4
# A matrix unit cuts every addend where the largest one's bits end, and its sum: 2 units for each
# and for each instruction of 8.
TRUNCATED = 2.5
# A gate made by the kernel itself is wrong by this many units, of 1.
SOFTPLUS = 4
# Of an activated gate g = -a softplus(z) or lb sigmoid(a z), units relative to |g|: exp(A_log), the
# exponential's argument, the products; and beside it, by form, units of a or of |lb|: z, exp z,
# 1 + exp z.
ACTIVATED_RELATIVE = 24
ACTIVATED = {"softplus": 40, "bounded": 16}
# A sigmoid of a logit: its exponential with an argument of at most 104 (fp32 has underflowed
# there), a sum and a quotient.
SIGMOID = EXPONENTIAL + 2 * 104 + 4
# What a stochastic-rounding sample may move a float64 by: it rounds as well.
FLOAT64_UNITS = 2.0


# Squares of float64 below this underflow.
SMALLEST_NORM = 1e-150


def norm(x: Tensor, dim: int) -> Tensor:
    """At least the 2-norm along `dim`, however small it is."""
    # x.norm is Python around the same function, and takes up to twice as long for one token.
    return torch.linalg.vector_norm(x, dim=dim) + SMALLEST_NORM


@dataclass(frozen=True)
class Roundings:
    """The worst of every rounding.

    Args:
        contract, io: the arithmetic declared.
        only: the source that counts, where a ceiling is taken apart; None: all.
    """

    contract: Contract
    io: Format
    only: str | None = None

    def counts(self, source: str) -> float:
        """1 where the roundings of this source count, else 0."""
        return float(self.only in (None, source))

    @property
    def unit(self) -> float:
        """u of the accumulator."""
        return self._unit(self.contract.accumulate)

    @property
    def narrow(self) -> bool:
        """Whether matrix units may take the sums, and truncate them."""
        return (
            self.contract.operands.precision < self.contract.accumulate.precision
            and self.contract.form == "chunk"
        )

    def stored(self, source: str, name: str, size: Tensor) -> Tensor:
        """What storing elements of at most `size` costs: u of each, or of the smallest normal."""
        fmt = self.contract.storage(name, self.io)
        return self.counts(source) * (
            self._storing(fmt) * size + 2 * fmt.unit * fmt.min_normal + self.lost
        )

    def relative(self, source: str, *names: str) -> float:
        """What storing under these names costs relatively."""
        return self.counts(source) * sum(
            self._storing(self.contract.storage(name, self.io)) for name in names
        )

    def sums(self, source: str, terms: int, *, scores: bool = False) -> float:
        """What a dot product costs, relative to its terms' sizes: operands and gamma_n."""
        added = (terms + PRODUCTS) * self.unit * (TRUNCATED if self.narrow else 1.0)
        return self.counts(source) * (added + 2 * self._operand(scores=scores)) * (1 + added)

    @property
    def factors(self) -> float:
        """u of the factors that decays may be made of, 0 where they may not."""
        return 0.0 if self.contract.factors is None else self._unit(self.contract.factors)

    @property
    def anchors(self) -> float:
        """What a decay of the scores takes beyond one exponential where it is a product of two:
        each has its own, of a rounded argument.
        """
        return 2 * (EXPONENTIAL + LARGEST_EXPONENT) * self.unit if self.contract.anchored else 0.0

    @property
    def queries(self) -> float:
        """u of q times the scale if stored, plus a rounded scale's product; 0 if neither."""
        if self.contract.scale == "rounded":
            return self._unit(self.contract.operands) + 2 * self._storing(
                self.contract.storage("qg", self.io)
            )
        return 0.0 if self.contract.scale == "free" else self._storing(self.io)

    def made_gates(self, size: Tensor, tokens: Tensor | int) -> Tensor | float:
        """Units by which the sum of the gates that a kernel makes itself may be off.

        Args:
            size: of the sum.
            tokens: that it is made of.
        """
        activation = activation_of(self.contract.gate)
        if activation is None:
            return SOFTPLUS * tokens if self.contract.softplus else 0.0
        beside = max(1.0, abs(activation.lower_bound)) * ACTIVATED[activation.form]
        return ACTIVATED_RELATIVE * size + beside * tokens

    @property
    def written(self) -> float:
        """The relative error of beta where the kernel makes it from a logit, else 0."""
        return self.counts("wy") * SIGMOID * self.unit if self.contract.beta != "value" else 0.0

    @property
    def lost(self) -> float:
        """What underflow may take from a number, on a unit that flushes."""
        return self.contract.accumulate.min_normal

    def _operand(self, *, scores: bool) -> float:
        """The rounding of a product's operand; those of scores and solve are not stored."""
        fmt = (self.contract.solve or self.contract.operands) if scores else self.contract.operands
        if fmt.name == "tf32" or self.contract.operand_rounding == "truncate":
            return 2 * fmt.unit  # units may drop the bits
        return self._unit(fmt) if scores and self.narrow else 0.0

    def _storing(self, fmt: Format) -> float:
        return self._unit(fmt) * (2 if self.contract.storage_rounding == "truncate" else 1)

    def _unit(self, fmt: Format) -> float:
        return fmt.unit * (FLOAT64_UNITS if fmt.name == "fp64" else 1.0)
