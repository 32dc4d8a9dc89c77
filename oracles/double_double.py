"""Float64 sums and products with their rounding errors, for beyond 53 bits."""

from __future__ import annotations

import torch
from flint import arb, ctx
from torch import Tensor

# A value and what it leaves out, below half a unit of it.
Pair = tuple[Tensor, Tensor]

# Dekker's: splits 53 bits into 26 and 27.
SPLITTER = 2.0**27 + 1


def two_sum(a: Tensor, b: Tensor) -> Pair:
    """a + b, exactly. Source: Knuth, The Art of Computer Programming, volume 2, 4.2.2."""
    total = a + b
    shifted = total - a
    return total, (a - (total - shifted)) + (b - shifted)


def two_product(a: Tensor, b: Tensor) -> Pair:
    """a b, exactly, where neither overflows past 2^996 nor the product falls below 2^-969.
    Source: Dekker, 1971.
    """
    product = a * b
    (a_high, a_low), (b_high, b_low) = _split(a), _split(b)
    return product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low


def dot(a: Tensor, b: Tensor) -> Pair:
    """The sum of a b over the last axis, of K terms: to K 2^-104 of the sum of their sizes.
    Source: Ogita, Rump and Oishi, Accurate sum and dot product, 2005.
    """
    a, b = torch.broadcast_tensors(a, b)
    total = rest = a.new_zeros(a.shape[:-1])
    for x, y in zip(a.unbind(-1), b.unbind(-1), strict=True):
        product, of_product = two_product(x, y)
        total, of_sum = two_sum(total, product)
        rest = rest + (of_product + of_sum)
    return two_sum(total, rest)


def exp(x: Tensor) -> Pair:
    """exp x to 100 bits, one element at a time: for parameters, not for activations."""
    with ctx.workprec(128):
        exact = [arb(value).exp() for value in x.detach().double().flatten().tolist()]
        high = [float(value) for value in exact]
        low = [float(value - rounded) for value, rounded in zip(exact, high, strict=True)]
    of_shape = (
        torch.tensor(part, dtype=torch.float64, device=x.device).view(x.shape)
        for part in (high, low)
    )
    rounded, rest = of_shape
    return rounded, rest


def _split(x: Tensor) -> Pair:
    shifted = SPLITTER * x
    high = shifted - (shifted - x)
    return high, x - high
