"""The loss that operators of plain calls are differentiated under."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from kdaverify.operator import CallOperator
from kdaverify.operators.uneven import uneven
from kdaverify.problems.axes import TORCH
from kdaverify.problems.portable import Stream
from oracles.signature import TensorCall


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
