"""Decisions of a launch by what its heads and sequences have on average, by the largest, or by its
first chunk.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.adapters.eager import EAGER, arithmetic_of, run_eager, stages_of
from kdaverify.budgets.solves import identity
from kdaverify.checks.execute import dtype_name
from kdaverify.faults.planted.broken_calls import CHUNK, Outputs, port, right
from kdaverify.faults.views import past_the_end, straight
from oracles.chunk import STAGES, Chunk
from oracles.inputs import Inputs

SMALL_NORM: Final = 2.0
DOUBLINGS: Final = 5
"""After the first power: 64 rows."""
COMMON: Final = 0.7
"""Of the norm of keys, that of their mean: 0.1 where they are random, 0.95 where they are not."""
MEAN_GATE: Final = -0.5
CLAMPED: Final = -5.0
TOP: Final = 64.0
LEAST: Final = 2.0**-60


def _by_doubling(c: Chunk) -> None:
    """Where the mean norm of the systems is small, products: powers cancel where one is not."""
    norms = c.Akk.abs().sum(-1).amax(-1)
    if float(norms.detach().mean()) > SMALL_NORM:
        STAGES.solve(c)
    else:
        _doubled(c)


def _doubled(c: Chunk) -> None:
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


def inverted_by_the_first_chunk(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """How systems are inverted goes by what the keys of the first chunk have in common."""
    k = x.k[:, :CHUNK].detach().float()
    contract = EAGER.contract(dtype_name(x))
    alike = k.numel() and float(k.mean(1).norm(dim=-1).max() / k.norm(dim=-1).max()) > COMMON
    stages = stages_of(contract) if alike else replace(stages_of(contract), solve=_doubled)
    return run_eager(contract, x, arithmetic=arithmetic_of(contract), stages=stages)


def clamped_by_the_first_chunk(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Gates are clamped where those of the first chunk are weak."""
    first = x.g[:, :CHUNK].detach()
    if first.numel() == 0 or float(first.min()) < CLAMPED:
        return right(x)
    return right(replace(x, g=x.g.clamp(min=CLAMPED)))


def clamped_by_the_mean(x: Inputs, _: dict[Any, Any]) -> Outputs:
    """Gates are clamped where those of a launch are weak on average."""
    if x.g.numel() == 0 or float(x.g.detach().mean()) < MEAN_GATE:
        return right(x)
    return right(replace(x, g=x.g.clamp(min=CLAMPED)))


def _scale(v: Tensor) -> Tensor:
    """The power of two by which the largest of all is next to TOP."""
    return torch.exp2((v.abs().amax() / TOP).clamp(min=LEAST).log2().ceil())


def _split(v: Tensor, scale: Tensor) -> Tensor:
    """As two numbers of fp16."""
    high = (v / scale).half().to(v.dtype)
    return scale * (high + (v / scale - high).half().to(v.dtype))


def values_of_one_scale(x: Inputs, _: dict[Any, Any], *, tokens: int | None = None) -> Outputs:
    """Values pass through two numbers of fp16 with one scale for the launch, of so many tokens."""
    end = past_the_end(x)
    if not end:
        return right(x)
    given = x.v.detach().float()
    scale = _scale(given[:, :end][:, :tokens])
    read = torch.cat((_split(given[:, :end], scale), given[:, end:]), dim=1)
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
    "systems are inverted by doubling where the first chunk has keys that differ": lambda: port(
        inverted_by_the_first_chunk
    ),
    "gates are clamped where those of the first chunk are weak": lambda: port(
        clamped_by_the_first_chunk
    ),
    "values have the scale of the first chunk": lambda: port(
        partial(values_of_one_scale, tokens=CHUNK)
    ),
}
"""By what is wrong."""
