"""The truth of long runs: the float64 chunk form, windows of it certified by balls.

The error of a window of the float64 run is measured against balls that start from the same state;
between windows errors are carried by the proven norm of the transitions. A window stands for the
others of its span: a radius is proven at the windows, inferred between.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final

import torch
from torch import Tensor

from oracles.arithmetic import TOGETHER
from oracles.cache import cache_in
from oracles.certified import certify
from oracles.chunk import COMPENSATED, chunk
from oracles.enclosure import Enclosure
from oracles.file_cache import default_folder
from oracles.inputs import Inputs
from oracles.tensors import TOKENS
from oracles.waypoints import WINDOW, Reached, walk

METHOD: Final = "float64 chunk form, windows certified by balls"
# How much larger the error of the other windows may be than that of the sampled ones.
OTHERS: Final = 4.0
# Balls this much narrower than one float64 rounding need no further precision.
SHARP: Final = 2.0**-60


@dataclass(frozen=True)
class Truth:
    """The exact run at some lengths.

    Args:
        reached: float64, rising lengths.
        radius: [lengths, B] of the state, as a fraction of its 2-norm: what the values there may be
            wrong by.
    """

    reached: tuple[Reached, ...]
    radius: Tensor


def long_run(inputs: Inputs, at: Sequence[int]) -> Truth:
    """The float64 chunk form of dense sequences at every length, and how wrong it can be.

    Math: r' = L r + n d, with L the product of the norms of the n windows' transitions and d what a
    window adds; L <= 1 for beta |k|^2 <= 2.

    Args:
        at: lengths, rising.
    """
    forward = partial(chunk, arithmetic=TOGETHER, stages=COMPENSATED)
    reached = tuple(walk(forward, inputs, at))
    starts = (Reached(0, reached[0].o[:, :0], inputs.state.double()), *reached)
    added = OTHERS * max(_window_error(inputs, start) for start in starts[:-1])
    radius = torch.zeros(inputs.B, dtype=torch.float64, device=inputs.q.device)
    radii = list[Tensor]()
    for before, after in pairwise(starts):
        size, windows = _norm(after), -(-(after.tokens - before.tokens) // WINDOW)
        largest = torch.maximum(size, _norm(before))
        radius = radius * _growth(inputs, before.tokens, after.tokens) + windows * added * largest
        radii.append(radius / size)
    return Truth(reached, torch.stack(radii))


def _norm(reached: Reached) -> Tensor:
    return reached.final_state.double().norm(dim=(-2, -1)).amax(-1)


def _growth(inputs: Inputs, first: int, end: int) -> Tensor:
    """[B] what an error of the state before `first` may become until `end`."""
    k = (
        inputs.k[:, first:end]
        .double()
        .square()
        .sum(-1)
        .repeat_interleave(inputs.HV // inputs.H, dim=-1)
    )
    reflection = (1 - inputs.beta[:, first:end].double() * k).abs().clamp(min=1.0)
    return (reflection.log() + inputs.decays[:, first:end].double().amax(-1)).sum(1).amax(-1).exp()


def _window_error(inputs: Inputs, start: Reached) -> float:
    """The first head's error from `start` in float64, relative to the larger state."""
    end = min(start.tokens + WINDOW, inputs.T)
    call = _first_head(inputs.span(start.tokens, end, start.final_state))
    exact = certify(
        call, accept=lambda answer: _narrow(answer.final_state), cache=cache_in(default_folder())
    ).final_state
    # Where the long run was made: float64 products are not the same bits on every device.
    found = chunk(call.on(inputs.q.device), arithmetic=TOGETHER, stages=COMPENSATED)[1].cpu()
    size = max(float(exact.high.norm()), float(call.state.norm()))
    return float(exact.error(found).norm() + exact.radius.norm()) / size if size else 0.0


def _narrow(state: Enclosure) -> bool:
    return float(state.radius.norm()) <= SHARP * float(state.high.norm())


def _first_head(x: Inputs) -> Inputs:
    """The first head of the first sequence, on the CPU, where balls live."""
    one = {name: getattr(x, name)[:1, :, :1].cpu() for name in TOKENS}
    return Inputs(**one, scale=x.factor, initial_state=x.state[:1, :1].cpu())
