"""The same for kernels of the recurrent form: errors of one token."""

from __future__ import annotations

import torch
from torch import Tensor

from kdaverify.budgets.ceiling_roundings import EXPONENTIAL, Roundings, norm
from oracles.arithmetic import NATIVE
from oracles.inputs import Inputs
from oracles.recurrence import Token, advance
from oracles.scan import scan
from oracles.tokens import Tensors, Tokens


def token_ceiling(inputs: Inputs, roundings: Roundings, carried: Tensors) -> tuple[Tensors, Tensor]:
    """Bounds of every element.

    Math: section 2. With l the error of the token's own roundings, d_S~ = alpha d_S + l, and
    through I - beta k k^T, whose 2-norm is max(1, |1 - beta |k|^2|), d_S = min(d_S~ + beta |k|
    |d_S~ k|, column norms) + |k| d_u + rounding.

    Args:
        carried: as `chunk_ceiling` takes it.
    Returns:
        As `chunk_ceiling` does.
    """

    def step(carry: Tensors, x: Tokens) -> tuple[Tensors, Tensors]:
        token = advance(carry[0], x, NATIVE)
        d_S, columns = _state(carry, x, token, roundings)
        q, after, scale = x.q.abs(), token.after.abs(), abs(inputs.factor)
        missed = torch.minimum(q @ d_S, norm(q, -1)[..., None] * columns[..., None, :])
        read = roundings.sums("output", inputs.K) + roundings.counts("output") * roundings.queries
        missed = scale * (missed + read * (q @ (after + d_S)))
        o = (inputs.factor * (x.q @ token.after)).abs()
        return (token.after, d_S, columns), (missed + roundings.stored("result", "o", o + missed),)

    final, (o,) = scan(inputs, 1, carried, step, dtype=torch.float64)
    return final, o


def _state(carry: Tensors, x: Tokens, token: Token, r: Roundings) -> tuple[Tensor, Tensor]:
    """Bounds of the error of S after a token: of every element, and of every column's norm."""
    S, d_S, columns = carry
    k, beta, alpha = x.k.abs(), x.beta[..., None], x.g.exp().mT
    unit = r.relative("state", "decayed")
    decayed = alpha * (S.abs() + d_S)
    exponent = torch.where(alpha > 0, x.g.abs().mT, 0.0)
    units = EXPONENTIAL + 2 * exponent + r.made_gates(exponent, 1)
    own = decayed * torch.expm1(r.counts("gates") * r.unit * units) + r.stored(
        "state", "decayed", decayed
    )
    d_decayed = alpha * d_S + own
    columns = alpha.amax((-2, -1))[..., None] * columns + norm(own, -2)
    most = token.decayed.abs() + d_decayed
    read = r.sums("state", k.shape[-1]) * (k @ most) + r.stored("state", "p", k @ most)
    left = token.residual.abs() + k @ d_decayed + read
    d_u = beta * (read + (unit + r.written) * left) + r.stored("state", "u", beta * left)
    reflected = d_decayed + k.mT * beta * torch.minimum(
        k @ d_decayed, norm(k, -1)[..., None] * columns[..., None, :]
    )
    added = 2 * unit * (most + k.mT * (token.u.abs() + d_u)) + r.stored(
        "state", "S", token.after.abs() + reflected
    )
    own = k.mT * d_u + added
    growth = (1 - beta * k.square().sum(-1, keepdim=True)).abs().clamp(min=1.0)[..., 0]
    columns = torch.minimum(norm(reflected + own, -2), growth * columns + norm(own, -2))
    return torch.minimum(reflected + own, columns[..., None, :]), columns
