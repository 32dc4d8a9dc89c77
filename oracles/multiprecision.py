"""The definition in mpmath: plain, slow, a code base of its own. For tiny sizes; it proves nothing by itself, it must lie in every ball."""

from __future__ import annotations

from typing import Any

import mpmath
from torch import Tensor

from oracles.inputs import Inputs

mp: Any = mpmath.mp

# mpmath carries no types: these are nested lists of mpf.
Vector = list[Any]
Matrix = list[Vector]


def recurrence(inputs: Inputs, *, digits: int = 50) -> tuple[list[list[Matrix]], list[list[Matrix]]]:
    """Token recurrence in `digits` decimal digits.

    Math: section 2, word for word; exp(-inf) is 0.

    Args:
        inputs: the call; every number enters exactly.
        digits: decimal digits carried by every operation.
    Returns:
        o [B][T][HV][V], zero past the last offset, and S_T [N][HV][K][V], as nested lists of mpf.
    """
    with mp.workdps(digits):
        rows: list[Matrix] = [[[mp.zero] * inputs.V for _ in range(inputs.HV)] for _ in range(inputs.B * inputs.T)]
        states: list[list[Matrix]] = [[_numbers(S) for S in of_sequence] for of_sequence in inputs.state]
        for n, (start, length) in enumerate(zip(inputs.starts, inputs.lengths, strict=True)):
            for j in range(inputs.HV):
                for row in range(start, start + length):
                    rows[row][j] = _step(inputs, row, j, states[n][j])
    return [rows[b * inputs.T : (b + 1) * inputs.T] for b in range(inputs.B)], states


def _step(inputs: Inputs, row: int, j: int, S: Matrix) -> Vector:
    """o_t; advances S in place."""
    i = j // (inputs.HV // inputs.H)
    q, k = (_numbers(x.flatten(0, 1)[row, i]) for x in (inputs.q, inputs.k))
    v, g, beta = (_numbers(x.flatten(0, 1)[row, j]) for x in (inputs.v, inputs.g, inputs.beta))
    K, V = range(inputs.K), range(inputs.V)
    for a in K:
        decay = mp.exp(g[a])
        S[a] = [decay * S[a][b] for b in V]
    u = [beta * (v[b] - sum(S[a][b] * k[a] for a in K)) for b in V]
    for a in K:
        S[a] = [S[a][b] + k[a] * u[b] for b in V]
    scale = mp.mpf(inputs.factor)
    return [scale * sum(S[a][b] * q[a] for a in K) for b in V]


def _numbers(tensor: Tensor) -> Any:
    """A tensor as nested lists of mpf, exactly."""
    if tensor.ndim:
        return [_numbers(row) for row in tensor]
    return mp.mpf(tensor.item())
