"""The loss that operators of plain calls are differentiated under."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import torch
from torch import Tensor

from kdaverify.operator import CallOperator
from kdaverify.problems.axes import TORCH
from kdaverify.problems.portable import Stream
from oracles.signature import TensorCall

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


def normal_cotangents(
    operator: CallOperator, problem: Any, call: TensorCall, exposed: tuple[str, ...], exponent: int
) -> dict[str, Tensor]:
    """Normal cotangents of every output that is returned, in the format of the problem, by name;
    from head to head and token to token apart where the problem has such a loss.

    Args:
        call: the inputs of the problem.
        exposed: the outputs that the implementation returns.
        exponent: of the power of two that scales them.
    """
    wanted = {
        name: output for name, output in operator.signature.cotangents.items() if output in exposed
    }
    shapes = {name: operator.signature.shape(output, call) for name, output in wanted.items()}
    drawn = {
        name: torch.from_numpy(Stream(problem.seed, operator.name, name).normal(*shape))
        for name, shape in shapes.items()
    }
    if getattr(problem, "loss", None) == "uneven":
        axes = {name: operator.signature[output].axes for name, output in wanted.items()}
        drawn = {
            name: values * uneven(axes[name], values.shape, problem.dtype)
            for name, values in drawn.items()
        }
    return {
        name: (values * 2.0**exponent).to(TORCH[problem.dtype]) for name, values in drawn.items()
    }
