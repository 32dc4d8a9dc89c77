"""The definition in mpmath: plain, slow, separate code; it must lie in every ball."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath
from torch import Tensor

from oracles.gradients import Cotangents, Gradients
from oracles.inputs import Inputs

mp: Any = mpmath.mp

# mpmath carries no types: these are nested lists of mpf.
Vector = list[Any]
Matrix = list[Vector]


@dataclass
class Numbers:
    """The tensors of a call: tokens [B * T][H or HV][...], states [N][HV][K][V]."""

    q: list[Matrix]
    k: list[Matrix]
    v: list[Matrix]
    g: list[Matrix]
    beta: Matrix
    states: list[list[Matrix]]


def recurrence(
    inputs: Inputs, *, digits: int = 50
) -> tuple[list[list[Matrix]], list[list[Matrix]]]:
    """Token recurrence in `digits` decimal digits.

    Math: section 2, word for word; exp(-inf) is 0.

    Args:
        inputs: the call; every number enters exactly.
        digits: decimal digits carried by every operation.
    Returns:
        o [B][T][HV][V], zero past the last offset, and S_T [N][HV][K][V], as nested lists of mpf.
    """
    with mp.workdps(digits):
        rows, states = _run(inputs, _all_numbers(inputs))
    return [rows[b * inputs.T : (b + 1) * inputs.T] for b in range(inputs.B)], states


def gradients(inputs: Inputs, cotangents: Cotangents, *, digits: int = 50) -> Gradients[Any]:
    """Gradients by mpmath's numerical derivative, an input element at a time: no adjoint.

    Math: section 5, with L = <do, o> + <dS_T, S_T> differentiated by central differences that
    mpmath takes at three times the digits; the gradient at a hard reset is 0, as that of every gate
    on its way to -inf. One element costs two runs of the recurrence.

    Args:
        inputs: the call; every number enters exactly.
        cotangents: of o and S_T.
        digits: decimal digits of the answer.
    Returns:
        Nested lists of mpf: the four of tokens [B * T][...], d_initial_state [N][HV][K][V].
    Raises:
        InputError: the cotangents do not fit the inputs.
    """
    do, dS = cotangents.of(inputs)
    with mp.workdps(digits):
        numbers, weights = _all_numbers(inputs), (_numbers(do.flatten(0, 1)), _numbers(dS))

        def loss() -> Any:
            return sum(_products(weights, _run(inputs, numbers)), mp.zero)

        q, k, v, g, beta, state = (
            _slopes(part, loss)
            for part in (numbers.q, numbers.k, numbers.v, numbers.g, numbers.beta, numbers.states)
        )
        return Gradients(q, k, v, g, beta, state)


def _slopes(part: Any, loss: Callable[[], Any]) -> Any:
    """The loss's derivative by every number of nested lists, moved in place and put back."""
    if isinstance(part[0], list):
        return [_slopes(inner, loss) for inner in part]
    return [_slope(part, i, loss) for i in range(len(part))]


def _slope(row: Vector, i: int, loss: Callable[[], Any]) -> Any:
    here = row[i]
    if here == mp.ninf:
        return mp.zero

    def at(x: Any) -> Any:
        row[i] = x
        return loss()

    found = mp.diff(at, here)
    row[i] = here
    return found


def _products(a: Any, b: Any) -> Vector:
    """Elementwise products of two nested lists of the same shape, as one list."""
    if isinstance(a, list | tuple):
        return [x for pair in zip(a, b, strict=True) for x in _products(*pair)]
    return [a * b]


def _run(inputs: Inputs, numbers: Numbers) -> tuple[list[Matrix], list[list[Matrix]]]:
    """o [B * T][HV][V] and S_T [N][HV][K][V]."""
    rows: list[Matrix] = [
        [[mp.zero] * inputs.V for _ in range(inputs.HV)] for _ in range(inputs.B * inputs.T)
    ]
    states = [[[*S] for S in of_sequence] for of_sequence in numbers.states]
    for n, (start, length) in enumerate(zip(inputs.starts, inputs.lengths, strict=True)):
        for j in range(inputs.HV):
            for row in range(start, start + length):
                rows[row][j] = _step(inputs, numbers, row, j, states[n][j])
    return rows, states


def _step(inputs: Inputs, numbers: Numbers, row: int, j: int, S: Matrix) -> Vector:
    """o_t; advances S in place."""
    i = j // (inputs.HV // inputs.H)
    q, k = numbers.q[row][i], numbers.k[row][i]
    v, g, beta = numbers.v[row][j], numbers.g[row][j], numbers.beta[row][j]
    K, V = range(inputs.K), range(inputs.V)
    for a in K:
        decay = mp.exp(g[a])
        S[a] = [decay * S[a][b] for b in V]
    u = [beta * (v[b] - sum(S[a][b] * k[a] for a in K)) for b in V]
    for a in K:
        S[a] = [S[a][b] + k[a] * u[b] for b in V]
    scale = mp.mpf(inputs.factor)
    return [scale * sum(S[a][b] * q[a] for a in K) for b in V]


def _all_numbers(inputs: Inputs) -> Numbers:
    q, k, v, g, beta = (
        _numbers(x.flatten(0, 1))
        for x in (inputs.q, inputs.k, inputs.v, inputs.decays, inputs.beta)
    )
    return Numbers(q, k, v, g, beta, _numbers(inputs.state))


def _numbers(tensor: Tensor) -> Any:
    """A tensor as nested lists of mpf, exactly."""
    if tensor.ndim:
        return [_numbers(row) for row in tensor]
    return mp.mpf(tensor.item())
