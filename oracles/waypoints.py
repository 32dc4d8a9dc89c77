"""A long run at some lengths: last outputs and state there. Nothing between is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from oracles.inputs import Inputs

WINDOW = 64


@dataclass(frozen=True)
class Reached:
    """A run after its first tokens.

    Args:
        tokens: how many.
        o: [B, at most WINDOW, HV, V], the outputs of the last of them.
        final_state: [B, HV, K, V].
    """

    tokens: int
    o: Tensor
    final_state: Tensor


def walk(
    run: Callable[[Inputs], tuple[Tensor, Tensor]],
    inputs: Inputs,
    at: Sequence[int],
    cuts: Sequence[int] = (),
) -> Iterator[Reached]:
    """What `run` has reached at every length, in one pass over dense sequences.

    A pause where a chunk ends changes nothing: the state is carried in the format it is returned
    in.

    Args:
        at: lengths, rising.
        cuts: further tokens at which the run is cut and resumed.
    """
    state, tail = inputs.initial_state, None
    for first, end in pairwise(sorted({0, *at, *(cut for cut in cuts if cut < at[-1])})):
        o, state = run(inputs.span(first, end, state))
        tail = _last(o if tail is None else torch.cat((tail, o[:, -WINDOW:]), dim=1))
        if end in at:
            yield Reached(end, tail, state)


def _last(o: Tensor) -> Tensor:
    return o[:, -WINDOW:]
