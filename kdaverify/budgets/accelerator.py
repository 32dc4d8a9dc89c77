"""What accelerators do beside rounding to nearest: truncated sums, errors of exponentials.

Source: "Numerical behavior of NVIDIA tensor cores" (Fasi, Higham, Mikaitis, Pranesh, 2021):
products are aligned to the largest addend and cut off one by one, sums too; the first generation
keeps no bit beyond. PTX ISA, ex2.approx.f32: relative error up to 2^-22.
"""

from __future__ import annotations

import torch
from torch import Tensor

from kdaverify.budgets.emulate import exp_base_2
from kdaverify.budgets.formats import FORMATS, Format, truncate_fp32
from oracles.chunk import Chunk, Stage

# Terms that one instruction adds to an accumulator, by the format of its operands: 256 bits of each
# row. fp32 operands go in as TF32, of which that is 8.
STEPS = {"bf16": 16, "fp16": 16}
WIDE_STEP = 8
FP32_BITS = FORMATS["fp32"].precision
EXP_ERROR = 2.0**-22  # ex2.approx.f32, see above


def exp_approximate(x: Tensor) -> Tensor:
    """exp through an exponential unit that is low by all it may be; exp 0 is exact."""
    return torch.where(x == 0, 1.0, exp_base_2(x) * (1 - EXP_ERROR))


def exp_short(x: Tensor) -> Tensor:
    """exp by a unit without fp32's last bit: low by half of that on average, token by token."""
    return truncate_fp32(exp_base_2(x), bits=1)


def exp_astray(x: Tensor) -> Tensor:
    """exp that is off by all it may be, too high or too low as the bits of the result have it: no
    token has all of a unit's error, and none is sure to have little. After one token with one gate
    a head the state's error is that of one exponential: NumPy's, of three roundoffs, was rejected.
    """
    exact = torch.exp(x.double())
    mantissa, _ = torch.frexp(exact)
    odd = (mantissa * 2.0**FP32_BITS).floor().remainder(2)
    return torch.where(x == 0, 1.0, exact * (1 + EXP_ERROR * (2 * odd - 1))).to(x.dtype)


def exp_of_vectors(x: Tensor) -> Tensor:
    """exp to a bit less than fp32, on either side: what vector units of processors give.

    NumPy's exp of fp32 errs by up to 1.6 and in the rms by 0.4 units in the last place, torch's by
    0.5 and 0.2, this by 1 and 0.4. A right kernel in NumPy had states at 1.09 times its tolerance.
    """
    exact = torch.exp(x.double())
    _, exponent = torch.frexp(exact)
    last_bit = torch.exp2((exponent - (FP32_BITS - 1)).double())
    return ((exact / last_bit).round() * last_bit).to(x.dtype)


def truncated_state(operands: Format) -> Stage:
    """Math: 3.5 with S as the accumulator of a matrix unit that multiplies `operands`: what is
    added to it is cut where its bits end.
    """
    step = STEPS.get(operands.name, WIDE_STEP)

    def state(c: Chunk) -> None:
        c.h = c.store("h", c.S)
        c.v_new = c.store("v_new", c.u - c.dot(c.w, c.h))
        total, kg = c.S * c.decay(slice(-1, None)).transpose(-1, -2), c.kg.transpose(-1, -2)
        for first in range(0, kg.shape[-1], step):
            terms = slice(first, first + step)
            total = _added(
                total,
                kg[..., None, terms].double()
                * c.v_new[..., terms, :].transpose(-1, -2)[..., None, :, :].double(),
            )
        c.S = c.store("S", total)

    return state


def _added(total: Tensor, products: Tensor) -> Tensor:
    """`total` [...] and `products` [..., n], added as one instruction does."""
    largest = torch.maximum(total.abs().double(), products.abs().amax(-1))
    _, exponent = torch.frexp(largest)
    last_bit = torch.exp2((exponent - FP32_BITS).double())
    aligned = (products / last_bit[..., None]).trunc().sum(-1) + (total.double() / last_bit).trunc()
    return toward_zero(aligned * last_bit)


def toward_zero(x: Tensor) -> Tensor:
    """float64 cut to fp32."""
    nearest = x.float()
    return torch.where(
        nearest.abs() > x.abs(), torch.nextafter(nearest, torch.zeros_like(nearest)), nearest
    )
