"""Faults that need several properties at once: only rows of covering arrays have them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Output
from kdaverify.adapters.eager import Eager
from kdaverify.problems import Problem
from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

DTYPE: Final = "bf16"
TILE: Final = 64
LONG: Final = 1024
NARROW: Final = 8
"""K of the one problem of the panel whose gradients go past 2,048 tokens."""
MANY: Final = 100


@dataclass(frozen=True)
class Shape:
    """What a fault may depend on: lengths, widths, heads' ratio, a given state, direction, and
    whether any beta is above 1.
    """

    lengths: tuple[int, ...]
    K: int
    V: int
    group: int
    state: bool
    backward: bool
    reflecting: bool

    @classmethod
    def of(cls, x: Inputs, *, backward: bool) -> Shape:
        lengths = (x.T,) * x.B if x.cu_seqlens is None else tuple(torch.diff(x.cu_seqlens).tolist())
        state, reflecting = x.initial_state is not None, bool((x.beta > 1).any())
        return cls(lengths, x.K, x.V, x.HV // x.H, state, backward, reflecting)

    @classmethod
    def of_problem(cls, p: Problem, *, backward: bool) -> Shape:
        lengths, state, reflecting = p.lengths or (p.T,) * p.B, p.state != "absent", p.beta == "two"
        return cls(lengths, p.K, p.V, p.HV // p.H, state, backward, reflecting)

    @property
    def long(self) -> bool:
        return max(self.lengths) >= LONG

    @property
    def several(self) -> bool:
        return sum(map(bool, self.lengths)) > 1


ShapeOutput = Callable[[Inputs, Output], Output]


@dataclass(frozen=True)
class ShapeFault:
    """What is wrong, where it shows, and the profile whose covering array holds that."""

    profile: str
    shows: Callable[[Shape], bool]
    output: ShapeOutput = lambda _, found: found
    gradients: Callable[[Gradients[Any]], Gradients[Any]] = lambda found: found


class Shaped(Eager):
    """The embedded kernel with a fault that depends on the shape."""

    def __init__(self, fault: ShapeFault) -> None:
        super().__init__("shaped", {DTYPE: f"chunk64-{DTYPE}"})
        self._fault = fault

    def forward(self, inputs: Inputs) -> Output:
        found = super().forward(inputs)
        if self._fault.shows(Shape.of(inputs, backward=False)):
            return self._fault.output(inputs, found)
        return found

    def gradients(self, inputs: Inputs, cotangents: Cotangents) -> Gradients[Any]:
        found = super().gradients(inputs, cotangents)
        if self._fault.shows(Shape.of(inputs, backward=True)):
            return self._fault.gradients(found)
        return found


RIGHT: Final = Shaped(ShapeFault("smoke", lambda _: False))


def _later_tiles_lost(_: Inputs, found: Output) -> Output:
    """A table that is full: what comes after its last entry keeps zeros."""
    o = found.o.clone()
    o[:, TILE:] = 0
    return replace(found, o=o)


def _first_values_again(x: Inputs, _: Output) -> Output:
    """Offsets of 16 bits: the last head of a group reads values and gates of the first one."""
    v, g = x.v.clone(), x.g.clone()
    v[:, :, -1], g[:, :, -1] = x.v[:, :, 0], x.g[:, :, 0]
    return RIGHT.forward(replace(x, v=v, g=g))


def _first_state_again(x: Inputs, _: Output) -> Output:
    """The same for the states that are given."""
    assert x.initial_state is not None
    state = x.initial_state.clone()
    state[:, -1] = x.initial_state[:, 0]
    return RIGHT.forward(replace(x, initial_state=state))


def _second_tile_unread(x: Inputs, _: Output) -> Output:
    """Queries beyond the first tile of columns are not loaded."""
    q = x.q.clone()
    q[..., TILE:] = 0
    return RIGHT.forward(replace(x, q=q))


def _last_token_of(x: Inputs) -> Tensor:
    """Whether a token is the only one of its chunk."""
    found, at = torch.zeros(x.T, dtype=torch.bool), 0
    for length in x.lengths:
        if length > TILE and length % TILE == 1:
            found[at + length - 1] = True
        at += length if x.cu_seqlens is not None else 0
    return found


def _tail_of_one_token(x: Inputs, _: Output) -> Output:
    """A last chunk of one token is a decode step, whose beta stops at 1."""
    alone = _last_token_of(x)[:, None]
    return RIGHT.forward(replace(x, beta=torch.where(alone, x.beta.clamp(max=1.0), x.beta)))


def _second_tilehalved(name: str) -> Callable[[Gradients[Tensor]], Gradients[Tensor]]:
    def changed(found: Gradients[Tensor]) -> Gradients[Tensor]:
        wrong: Tensor = found.named()[name].clone()
        wrong[..., TILE:] /= 2
        return replace(found, **{name: wrong})

    return changed


def halved(name: str) -> Callable[[Gradients[Tensor]], Gradients[Tensor]]:
    return lambda found: replace(found, **{name: found.named()[name] / 2})


FAULTS: Final = {
    "a thousand tokens, K over 8, backward": ShapeFault(
        "smoke", lambda x: x.backward and x.long and x.K > NARROW, gradients=halved("dk")
    ),
    "a thousand tokens, three heads a group": ShapeFault(
        "smoke",
        lambda x: x.long and x.group == 3,
        output=_first_values_again,
        gradients=halved("dq"),
    ),
    "a hundred sequences, one of several chunks, K over 8": ShapeFault(
        "smoke",
        lambda x: len(x.lengths) >= MANY and max(x.lengths) > TILE and x.K > NARROW,
        output=_later_tiles_lost,
        gradients=halved("dv"),
    ),
    "a hundred sequences, K over a tile": ShapeFault(
        "smoke",
        lambda x: len(x.lengths) >= MANY and x.K > TILE,
        output=_second_tile_unread,
        gradients=_second_tilehalved("dk"),
    ),
    "a thousand tokens, three heads a group, a given state": ShapeFault(
        "acceptance",
        lambda x: not x.backward and x.long and x.group == 3 and x.state,
        output=_first_state_again,
    ),
    "a hundred sequences, two heads a group, backward": ShapeFault(
        "acceptance",
        lambda x: x.backward and len(x.lengths) >= MANY and x.group == 2,
        gradients=halved("dv"),
    ),
    "several sequences, one of a thousand tokens, K over 8, backward": ShapeFault(
        "acceptance",
        lambda x: x.backward and x.long and x.several and x.K > NARROW,
        gradients=halved("dg"),
    ),
    "beta above 1 in a last chunk of one token": ShapeFault(
        "smoke",
        lambda x: (
            x.reflecting and not x.backward and any(n > TILE and n % TILE == 1 for n in x.lengths)
        ),
        output=_tail_of_one_token,
    ),
}
"""By trigger."""
