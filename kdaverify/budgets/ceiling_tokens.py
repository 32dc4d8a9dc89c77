"""The same for kernels of the recurrent form: errors of one token."""

from __future__ import annotations

import torch
from torch import Tensor

from kdaverify.budgets.ceiling_roundings import EXPONENTIAL, SOFTPLUS, Roundings, norm
from oracles.arithmetic import NATIVE
from oracles.inputs import Inputs
from oracles.recurrence import advance
from oracles.scan import Tensors, Tokens, scan


def token_ceiling(inputs: Inputs, roundings: Roundings, carried: Tensors) -> tuple[Tensors, Tensor]:
    """Bounds of every element.

    Math: section 2. With l what the token's own roundings miss, d_S~ = alpha d_S + l, and through I - beta k k^T, whose 2-norm is
    max(1, |1 - beta |k|^2|), d_S = min(d_S~ + beta |k| |d_S~ k|, column norms) + |k| d_u + rounding.

    Args:
        carried: as `chunk_ceiling` takes it.
    Returns:
        As `chunk_ceiling` does.
    """
    r = roundings
    sums_k = r.sums("state", inputs.K)

    def step(carry: Tensors, x: Tokens) -> tuple[Tensors, Tensors]:
        S, d_S, columns = carry
        token = advance(S, x, NATIVE)
        after, k, beta = token.after, x.k.abs(), x.beta[..., None]
        alpha = x.g.exp().mT
        # Of the decay, and of its product with the state.
        units = EXPONENTIAL + 2 * torch.where(alpha > 0, x.g.abs().mT, 0.0) + (SOFTPLUS if r.contract.softplus else 0.0)
        decayed = alpha * (S.abs() + d_S)
        own = decayed * torch.expm1(r.counts("gates") * r.unit * units) + r.stored("state", "decayed", decayed)
        d_decayed, columns = alpha * d_S + own, alpha.amax((-2, -1))[..., None] * columns + norm(own, -2)
        most = token.decayed.abs() + d_decayed
        read = sums_k * (k @ most) + r.stored("state", "p", k @ most)
        left = token.residual.abs() + k @ d_decayed
        d_u = beta * (read + r.relative("state", "decayed") * (left + read)) + r.stored("state", "u", beta * (left + read))
        reflected = d_decayed + k.mT * beta * torch.minimum(k @ d_decayed, norm(k, -1)[..., None] * columns[..., None, :])
        rounding = r.stored("state", "S", after.abs() + reflected) + 2 * r.relative("state", "decayed") * (most + k.mT * (token.u.abs() + d_u))
        own = k.mT * d_u + rounding
        growth = (1 - beta * k.square().sum(-1, keepdim=True)).abs().clamp(min=1.0)[..., 0]
        columns = torch.minimum(norm(reflected + own, -2), growth * columns + norm(own, -2))
        d_S = torch.minimum(reflected + own, columns[..., None, :])
        q, scale = x.q.abs(), abs(inputs.factor)
        missed = torch.minimum(q @ d_S, norm(q, -1)[..., None] * columns[..., None, :])
        missed = scale * (missed + r.sums("output", inputs.K) * (q @ (after.abs() + d_S)))
        o = inputs.factor * (x.q @ after)
        return (after, d_S, columns), (missed + r.stored("result", "o", o.abs() + missed),)

    final, (o,) = scan(inputs, 1, carried, step, dtype=torch.float64)
    return final, o
