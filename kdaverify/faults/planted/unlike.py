"""Decisions of a launch by what its heads and sequences have on average, or by the largest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER, arithmetic_of, run_eager, stages_of
from kdaverify.budgets.solves import identity
from kdaverify.checks.execute import dtype_name
from kdaverify.faults.planted.broken_calls import Outputs, port, right
from kdaverify.faults.views import past_the_end, straight
from oracles.chunk import STAGES, Chunk
from oracles.inputs import Inputs

SMALL_NORM: Final = 2.0
DOUBLINGS: Final = 5
"""After the first power: 64 rows."""
MEAN_GATE: Final = -0.5
CLAMPED: Final = -5.0
TOP: Final = 64.0
LEAST: Final = 2.0**-60


def _by_doubling(c: Chunk) -> None:
    """Where the mean norm of the systems is small, products: powers cancel where one is not."""
    norms = c.Akk.abs().sum(-1).amax(-1)
    if float(norms.detach().mean()) > SMALL_NORM:
        STAGES.solve(c)
        return
    inverse, power = identity(c.Akk) - c.Akk, c.Akk
    for _ in range(DOUBLINGS):
        power = c.dot(power, power)
        inverse = inverse + c.dot(inverse, power)
    c.R = c.store("R", inverse)


def inverted_by_the_mean(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """How systems are inverted goes by the mean of their norms: it had to be the largest."""
    contract = EAGER.contract(dtype_name(x))
    stages = replace(stages_of(contract), solve=_by_doubling)
    return run_eager(contract, x, arithmetic=arithmetic_of(contract), stages=stages)


def clamped_by_the_mean(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Gates are clamped where those of a launch are weak on average."""
    if x.g.numel() == 0 or float(x.g.detach().mean()) < MEAN_GATE:
        return right(x)
    return right(replace(x, g=x.g.clamp(min=CLAMPED)))


def _split(v: Tensor) -> Tensor:
    """As two numbers of fp16, under a power of two by which the largest of all is next to TOP."""
    scale = torch.exp2((v.abs().amax() / TOP).clamp(min=LEAST).log2().ceil())
    high = (v / scale).half().to(v.dtype)
    return scale * (high + (v / scale - high).half().to(v.dtype))


def values_of_one_scale(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Values pass through two numbers of fp16 with one scale for the launch."""
    end = past_the_end(x)
    if not end:
        return right(x)
    given = x.v.detach().float()
    read = torch.cat((_split(given[:, :end]), given[:, end:]), dim=1)
    return right(replace(x, v=straight(x.v, read.to(x.v.dtype))))


def no_decay_by_the_first_head(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Where the first head does not decay, none does."""
    return right(x if bool(x.g[:, :, :1].any()) else replace(x, g=0 * x.g))


FAULTS: Final[dict[str, Callable[[], Adapter]]] = {
    "systems are inverted by doubling where their mean norm is small": lambda: port(
        inverted_by_the_mean
    ),
    "gates are clamped where their mean is weak": lambda: port(clamped_by_the_mean),
    "values have one scale for all heads and sequences": lambda: port(values_of_one_scale),
    "no head decays where the first does not": lambda: port(no_decay_by_the_first_head),
}
"""By what is wrong."""
