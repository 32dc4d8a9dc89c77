"""Stochastic-rounding samples of attention kernels."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.attention.contract import AttentionContract
from kdaverify.budgets.formats import Format
from kdaverify.budgets.sampled import SEED
from kdaverify.budgets.stochastic_rounding import StochasticRounding
from oracles.arithmetic import Arithmetic

NEARLY_HELD: Final = 2.0**-6
"""Of a roundoff. The largest P of a row is 1 but for the last bits of its exponent, and a kernel
stores exactly 1: a sample that moved it by half a spacing had 1.7 times the error of every emulated
kernel on peaked rows."""

MADE: Final = ("PV", "dPV", "dq_product")
"""Results of `dot`, which rounds them to the accumulator's format, and a cotangent as it is
given."""


def sample_generator(number: int) -> torch.Generator:
    return torch.Generator().manual_seed(SEED + number)


def sampled_arithmetic(
    contract: AttentionContract, number: int, rng: torch.Generator | None = None
) -> Arithmetic:
    """A kernel whose every rounding is stochastic; the same one for the same number.

    Operands that the pipeline has stored are not rounded once more: a stored sample is not a number
    of its format, and P would be rounded twice.

    Args:
        rng: where its samples come from; by default a generator of its own, which begins as
            `sample_generator(number)` does.
    """
    rounding = StochasticRounding(rng or sample_generator(number))

    def once() -> StochasticRounding:
        return StochasticRounding(torch.Generator().manual_seed(SEED - number - 1))

    brought = contract.operands.name == "tf32"

    def store(name: str, tensor: Tensor) -> Tensor:
        fmt = contract.storage(name)
        if name == "q_scaled":
            # the backward reads what the forward stored, and equal numbers are rounded alike
            return rounded(once(), tensor, fmt)
        if name in MADE and fmt.unit <= contract.accumulate.unit:
            return tensor
        return rounded(rounding, tensor, fmt)

    def dot(a: Tensor, b: Tensor) -> Tensor:
        if brought:
            a, b = (rounded(rounding, x, contract.operands) for x in (a, b))
        return rounding.dot(a, b, contract.accumulate)

    def row_sum(P: Tensor) -> Tensor:
        # Without it conforming kernels that sum a row in order (MLX on a CPU) were at 1.1 times
        # their tolerance where all values are alike: o has the error of the sum there, in every row
        ones = P.new_ones(P.shape[-1], 1)
        return rounding.dot(P, ones, contract.accumulate).squeeze(-1)

    return Arithmetic(store=store, dot=dot, row_sum=row_sum)


def rounded(rounding: StochasticRounding, tensor: Tensor, fmt: Format) -> Tensor:
    """A sample of each element's rounding; what the format nearly holds goes to nearest."""
    nearest = fmt.round(tensor)
    held = (tensor - nearest).abs() <= NEARLY_HELD * fmt.unit * tensor.abs()
    return torch.where(held | ~torch.isfinite(tensor), nearest, rounding.rounded(tensor, fmt))
