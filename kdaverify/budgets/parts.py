"""A run in parts: cut at tokens, each part resumed from the state the last one left."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from oracles.arithmetic import is_finite
from oracles.inputs import Inputs

Outputs = tuple[Tensor, Tensor]


def run_in_parts(
    kernel: Callable[[Inputs], Outputs], inputs: Inputs, cuts: tuple[int, ...]
) -> Outputs:
    """o and S_T of `kernel` on [0, cuts[0]), [cuts[0], cuts[1]), ... of dense sequences.

    Of a state that overflows, as where decays are products of factors, no part begins: what would
    follow is NaN.
    """
    if not cuts:
        return kernel(inputs)
    pieces, state = list[Tensor](), inputs.initial_state
    for first, end in pairwise((0, *cuts, inputs.T)):
        if pieces and state is not None and not is_finite(state):
            rest = (inputs.B, inputs.T - first, *pieces[0].shape[2:])
            pieces.append(pieces[0].new_full(rest, math.nan))
            break
        o, state = kernel(inputs.span(first, end, state))
        pieces.append(o)
    assert state is not None  # there is at least one part
    return torch.cat(pieces, dim=1), state
