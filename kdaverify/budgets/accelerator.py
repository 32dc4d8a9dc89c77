"""What units of accelerators do beside rounding to nearest: sums of matrix units truncate, exponential units are a bit short.

Source: "Numerical behavior of NVIDIA tensor cores" (Fasi, Higham, Mikaitis, Pranesh, 2021): addends are aligned to the largest and cut
off, sums too. PTX ISA, ex2.approx.f32: relative error up to 2^-22.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kdaverify.budgets.emulate import exp_base_2
from kdaverify.budgets.formats import FORMATS, truncate_fp32
from oracles.chunk import Chunk

# Terms that one instruction adds to an accumulator.
STEP = 16
FP32_BITS = FORMATS["fp32"].precision


def exp_approximate(x: Tensor) -> Tensor:
    """exp through an exponential unit that leaves the last bit of fp32 out."""
    return truncate_fp32(exp_base_2(x), bits=1)


def truncated_state(c: Chunk) -> None:
    """Math: 3.5 with S as the accumulator of a matrix unit: what is added to it is cut off where its bits end, and so is the sum."""
    c.h = c.store("h", c.S)
    c.v_new = c.store("v_new", c.u - c.dot(c.w, c.h))
    total, kg = c.S * c.decay(slice(-1, None)).transpose(-1, -2), c.kg.transpose(-1, -2)
    for first in range(0, kg.shape[-1], STEP):
        terms = slice(first, first + STEP)
        total = _added(total, kg[..., terms].double() @ c.v_new[..., terms, :].double())
    c.S = c.store("S", total)


def _added(total: Tensor, addend: Tensor) -> Tensor:
    _, exponent = torch.frexp(total)
    last_bit = torch.exp2((exponent - FP32_BITS).double())
    aligned = torch.where(total == 0, addend, (addend / last_bit).trunc() * last_bit)
    return toward_zero(total.double() + aligned)


def toward_zero(x: Tensor) -> Tensor:
    """float64 cut to fp32."""
    nearest = x.float()
    return torch.where(nearest.abs() > x.abs(), torch.nextafter(nearest, torch.zeros_like(nearest)), nearest)
