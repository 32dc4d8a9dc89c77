"""The float64 adjoint with a proven radius: fast gradients for 16-bit kernels.

The adjoint's transitions are the transposed ones of the recurrence, of the same norm, so the error
of P grows as that of S does. What a token adds, and what the errors of S and P do to its gradients,
is bounded by norms of computed values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.linalg import vector_norm

from oracles.adjoint import Back, adjoint_with_terms, retreat, shared, term_sizes
from oracles.arithmetic import NATIVE
from oracles.gradients import (
    Cotangents,
    GradientAnswer,
    Gradients,
    Terms,
    over_channels,
    over_key_heads,
)
from oracles.inputs import Inputs
from oracles.recurrence import Token, advance
from oracles.running_error import (
    EXP_UNITS,
    SAFETY,
    TINY,
    UNIT,
    enclose,
    exact,
    grow,
    local,
    over_value_heads,
    sizes_of,
    token_sizes,
)
from oracles.scan import there_and_back
from oracles.tokens import Tensors, Tokens


@dataclass(frozen=True)
class ForwardTokenError:
    """One token of the forward; bounds [n, HV] of S~'s and S's errors in the Frobenius norm, and
    the size of S~.
    """

    token: Token
    decayed: Tensor
    after: Tensor
    size: Tensor


def enclosed_gradients(inputs: Inputs, cotangents: Cotangents) -> GradientAnswer:
    """Float64 gradients and a rigorous radius for every element.

    Math: section 5. With r, a, R, b bounds of the errors of S, S~, P, P~ in the Frobenius norm, x =
    v - S~^T k, S[k] a row, P[v] a column:
        p:     e <= |k| (R + (K + 4) u |P[v]|)             x:     f <= |k| (a + (K + 4) u |S~|) + 2
            u |x|
        dq:    scale |do| (r + (V + 4) u |S[k]|)           dv:    beta e + 2 u |dv|
        dbeta: |p| f + |e| (|x| + f) + (V + 2) u |p| |x|   dg:    a |P~[k]| + b |S~[k]| + a b + (V +
            2) u |P~[k]| |S~[k]|
        dk:    R |u| + (|P[k]| + R) |error of u| + beta (a |p| + (|S~[k]| + a) |e|) + (V + 6) u
            (|P[k]| |u| + beta |S~[k]| |p|)

    Args:
        inputs: the call.
        cotangents: of o and S_T.
    Returns:
        GradientAnswer; `zero` marks structurally zero elements.
    Raises:
        InputError: the cotangents do not fit the inputs.
    """
    if not any(inputs.lengths):
        gradients, terms = adjoint_with_terms(inputs, cotangents)
        return GradientAnswer(
            Gradients(**{name: exact(x) for name, x in gradients.named().items()}),
            terms,
            "inputs, exact",
        )
    gradients, terms, bounds = _walk(inputs, cotangents)
    radii, zero = bounds.named(), _structural_zeros(inputs, cotangents, gradients)
    found = {
        name: enclose(value, radii[name].nan_to_num(nan=torch.inf, posinf=torch.inf), zero[name])
        for name, value in gradients.named().items()
    }
    return GradientAnswer(Gradients(**found), terms, "float64 adjoint, proven radius")


def _walk(
    inputs: Inputs, cotangents: Cotangents
) -> tuple[Gradients[Tensor], Terms, Gradients[Tensor]]:
    """The gradients, the sizes of their terms and their radii, in one walk: a second would compute
    the same states and gradients again.
    """
    do, dS = cotangents.of(inputs)
    nothing = do.new_zeros(inputs.N, inputs.HV)
    q, k = (over_value_heads(inputs, vector_norm(x.double(), dim=-1)) for x in (inputs.q, inputs.k))
    weight = inputs.beta.double() * k.square()
    given = abs(inputs.factor) * (q * vector_norm(do, dim=-1))
    own = torch.stack(((inputs.K + 10) * weight, 3 * given), dim=-1)

    def there(carry: Tensors, x: Tokens) -> tuple[Tensors, ForwardTokenError]:
        state, r = carry
        passed = _errors_there(x, advance(state, x, NATIVE), r)
        return (passed.token.after, torch.where(_real(x), passed.after, r)), passed

    def back(carry: Tensors, x: Tokens, passed: ForwardTokenError) -> tuple[Tensors, Tensors]:
        dS, r, size = carry
        found = retreat(dS, x, passed.token, inputs.factor, NATIVE)
        errors = _errors_back(x, found, r)
        terms, size = term_sizes(size, x, passed.token, found, NATIVE)
        after = (found.before, torch.where(_real(x), errors.before, r), size)
        return after, (*found.gradients(), terms, *_norms(passed, found, errors))

    start, end = (inputs.state.double(), nothing), (dS, nothing, dS.abs())
    (dS, r, size), (*found, terms, sizes, rows, columns) = there_and_back(
        inputs,
        start=start,
        there=there,
        end=end,
        back=back,
        others=(do, own, token_sizes(inputs)),
    )
    dq, dk, dv, dg, dbeta = _elements(inputs, do, found, _Norms(sizes, rows, columns))
    radii = Gradients(
        over_key_heads(inputs, dq),
        over_key_heads(inputs, dk),
        dv,
        over_channels(inputs, dg),
        dbeta,
        (r + TINY)[..., None, None].expand_as(dS),
    )
    of_terms = Terms(over_channels(inputs, terms), size)
    return shared(inputs, found, dS, NATIVE), of_terms, radii


def _errors_there(x: Tokens, token: Token, r: Tensor) -> ForwardTokenError:
    """The token with bounds of the errors of S~ and S, from that of the state before it."""
    sizes, size = sizes_of(x), _size(token.decayed)
    decayed = SAFETY * (r * sizes.decay + (2 + EXP_UNITS) * UNIT * size) + TINY
    after = grow(r, sizes) + local(sizes, token.decayed, token.after)
    return ForwardTokenError(token, decayed, after, size)


class BackwardTokenError(NamedTuple):
    """Bounds of the errors of P, P~ and of the gradient before the token; the size of P."""

    P: Tensor
    d_decayed: Tensor
    before: Tensor
    size: Tensor


def _errors_back(x: Tokens, found: Back, r: Tensor) -> BackwardTokenError:
    """Those of a token, from the bound of the gradient after it."""
    sizes, (weight, given) = sizes_of(x), x.others[1].squeeze(2).unbind(-1)
    size = _size(found.P)
    R = r + SAFETY * UNIT * (size + given) + TINY
    own = weight * size + 2 * _size(found.d_decayed)
    b = R * sizes.reflection * (1 + 64 * UNIT) + SAFETY * UNIT * own + TINY
    before = (
        b * sizes.decay * (1 + 64 * UNIT)
        + SAFETY * UNIT * (2 + EXP_UNITS) * _size(found.before)
        + TINY
    )
    return BackwardTokenError(R, b, before, size)


class _Norms(NamedTuple):
    """What the radii of a token's gradients are made of, [n, HV, 1, ...].

    `sizes` [9]: bounds of the errors of S, S~, P, P~; the sizes of S~, P, u, p and x. `rows` [4 K]:
    those of the rows of S, S~, P, P~. `columns` [V]: those of the columns of P.
    """

    sizes: Tensor
    rows: Tensor
    columns: Tensor


def _norms(passed: ForwardTokenError, found: Back, errors: BackwardTokenError) -> _Norms:
    token = passed.token
    lengths = (vector_norm(x, dim=(-2, -1)) for x in (token.u, found.dp, token.residual))
    bounds = passed.after, passed.decayed, errors.P, errors.d_decayed
    sizes = torch.stack((*bounds, passed.size, errors.size, *lengths), dim=-1)
    states = torch.cat((token.after, token.decayed, found.P, found.d_decayed), dim=-2)
    columns = vector_norm(found.P, dim=-2, keepdim=True)
    return _Norms(sizes[..., None, :], vector_norm(states, dim=-1)[..., None, :], columns)


def _elements(inputs: Inputs, do: Tensor, found: Sequence[Tensor], norms: _Norms) -> Tensors:
    """Radii of dq, dk, dv, dg, dbeta of every token, from those gradients."""
    V, group, beta = inputs.V, inputs.HV // inputs.H, inputs.beta.double()[..., None]
    r, a, R, b, of_decayed, of_P, u, p, residual = norms.sizes.split(1, dim=-1)
    S, decayed, P, d_decayed = norms.rows.split(inputs.K, dim=-1)
    k = over_value_heads(inputs, _length(inputs.k.double()))
    columns = k * (R + (inputs.K + 4) * UNIT * norms.columns)
    e = k * (R + (inputs.K + 4) * UNIT * of_P)
    f = k * (a + (inputs.K + 4) * UNIT * of_decayed) + 2 * UNIT * residual
    dq = abs(inputs.factor) * _length(do) * (r + (V + 4) * UNIT * S) + group * UNIT * found[0].abs()
    dv = beta * columns + 2 * UNIT * found[2].abs()
    dbeta = p * f + e * (residual + f) + (V + 2) * UNIT * p * residual
    written = R * u + (P + R) * (beta * f + 2 * UNIT * u)
    read = beta * (a * p + (decayed + a) * e)
    dk = written + read + (V + 6 + group) * UNIT * (P * u + beta * decayed * p)
    # Where channels share a gate, each term is rounded in the sum over them too.
    shared = 0 if inputs.KG == inputs.K else inputs.K
    dg = a * d_decayed + b * decayed + a * b + (V + 2 + shared) * UNIT * d_decayed * decayed
    dq, dk, dv, dg, dbeta = (SAFETY * radius + TINY for radius in (dq, dk, dv, dg, dbeta))
    return dq, dk, dv, dg, dbeta.squeeze(-1)


def _structural_zeros(
    inputs: Inputs, cotangents: Cotangents, gradients: Gradients[Tensor]
) -> dict[str, Tensor]:
    """Elements that are 0 because every term is 0, not because terms cancel or underflow.

    The same adjoint over the supports of its operands: with 0/1 entries and additions only, a 0 is
    a proof.
    """
    if all(bool((x != 0).all()) for x in gradients.named().values()):
        return {
            name: torch.zeros_like(x, dtype=torch.bool) for name, x in gradients.named().items()
        }

    def there(carry: Tensors, x: Tokens) -> tuple[Tensors, Tensors]:
        k, v, beta = (_support(t) for t in (x.k, x.v, x.beta[..., None]))
        decayed = carry[0] * x.g.isfinite().transpose(-1, -2)
        residual = v + k @ decayed
        after = _support(decayed + k.transpose(-1, -2) * (beta * residual))
        return (after,), (decayed, residual, after)

    def back(carry: Tensors, x: Tokens, left: Tensors) -> tuple[Tensors, Tensors]:
        decayed, residual, after = left
        q, k, beta, do = (_support(t) for t in (x.q, x.k, x.beta[..., None], x.others[0]))
        P = _support(carry[0] + q.transpose(-1, -2) * do)
        p = k @ P
        dk = (beta * residual) @ P.transpose(-1, -2) + (beta * p) @ decayed.transpose(-1, -2)
        d_decayed = _support(P + beta * k.transpose(-1, -2) * p)
        outputs = (
            do @ after.transpose(-1, -2),
            dk,
            beta * p,
            (d_decayed * decayed).sum(-1)[..., None, :],
            (p * residual).sum(-1),
        )
        return (d_decayed * x.g.isfinite().transpose(-1, -2),), outputs

    do, dS = cotangents.of(inputs)
    start, end = (_support(inputs.state.double()),), (_support(dS),)
    (dS,), (dq, dk, dv, dg, dbeta) = there_and_back(
        inputs, start=start, there=there, end=end, back=back, others=(do,)
    )
    supports = Gradients(
        over_key_heads(inputs, dq),
        over_key_heads(inputs, dk),
        dv,
        over_channels(inputs, dg),
        dbeta,
        dS,
    ).named()
    return {name: (supports[name] == 0) & (x == 0) for name, x in gradients.named().items()}


def _support(tensor: Tensor) -> Tensor:
    return (tensor != 0).double()


def _length(row: Tensor) -> Tensor:
    return vector_norm(row, dim=-1, keepdim=True)


def _real(x: Tokens) -> Tensor:
    """[n, 1], False where the token is a row past a sequence's end: that one rounds nothing."""
    return x.valid.to(x.k.device)


def _size(matrix: Tensor) -> Tensor:
    return vector_norm(matrix, dim=(-2, -1))
