"""Losses whose incoming gradients differ from head to head and from token to token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import torch
from torch import Tensor

Loss = Literal["uneven"]
HEADS: Final = {"fp32": 24, "bf16": 24, "fp16": 6}
"""Powers of two between the first head, or channel, and the last, by format: normal numbers of it.
A backward squeezed do through fp16 under one power of two for a sequence, and was accepted: heads
of 2^-18 of the largest were wrong by 14 %."""
LATER: Final = {"fp32": 20, "bf16": 20, "fp16": 5}
"""Between the first token and all others: keys behind the first have gradients of these alone."""
SPARED: Final = 4
"""One token in so many, the last of them, has a gradient of 0 in all heads; LSE has one there."""


def of_loss(loss: Loss | None) -> str:
    """What the id of a problem has of its loss."""
    return "" if loss is None else f"-{loss}_loss"


def uneven(axes: Sequence[str], shape: Sequence[int], dtype: str) -> Tensor:
    """Factors of a cotangent, powers of two and 0, in its shape.

    Args:
        axes: letters of the shape.
    """
    factors = torch.ones(*shape, dtype=torch.float64)
    for at, (axis, size) in enumerate(zip(axes, shape, strict=True)):
        own = [size if n == at else 1 for n in range(len(shape))]
        if axis in ("H", "D"):
            exponents = torch.linspace(0, -HEADS[dtype], size).round()
            factors = factors * exponents.double().exp2().view(own)
        elif axis in ("T", "s_q"):
            token = torch.arange(size)
            later = torch.where(token > 0, 2.0 ** -LATER[dtype], 1.0).double()
            spared = (token % SPARED == SPARED - 1) & (axes[-1] != axis)
            factors = factors * later.masked_fill(spared, 0.0).view(own)
    return factors
