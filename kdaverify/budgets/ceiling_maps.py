"""Error bound of states that joined maps of chunks make, whichever maps are joined first.

What a chunk adds to the state, C_j, reaches the state after chunk i through M_i ... M_{j+1}. Each
of these maps is off by rho of its bound b >= |M|_2 in the Frobenius norm, each product of two by
what rounding it costs, at most sqrt(K) u of the product of their bounds: in every order of joins
    1 + rho_21 <= (1 + rho_2)(1 + rho_1)(1 + cost).
So N_i = b_i N_{i-1} + |C_i| bounds the sizes of all parts of a column, the same sum with f_i b_i, f
all of these factors of a chunk, those of its computed parts, and their difference the error.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kdaverify.budgets.ceiling_roundings import norm
from oracles.tokens import Tensors

if TYPE_CHECKING:
    from kdaverify.budgets.ceiling_chunks import ChunkErrors


def reached(S: Tensor, columns: Tensor) -> Tensors:
    """Bounds of the parts of every column [N, HV, V] before the first chunk: exact, computed, and
    the largest so far.

    Args:
        S: the state; columns: 2-norm bounds of its error.
    """
    size = norm(S, -2)
    return size, size + columns, size + columns


def reached_after(errors: ChunkErrors, before: Tensors) -> Tensors:
    """The same after a chunk."""
    c, r, K = errors.c, errors.r, errors.K
    exact, computed, largest = before
    least, added = r.stored("state", "M", c.S.new_zeros(())), c.kg.mT @ c.u
    of_map, of_added = norm(_missed_of_map(errors).flatten(-2), -1), _missed_of_added(errors)
    growth = errors.growth
    factor = (1 + of_map[..., None] / growth) * _joins(errors)
    bias = K * least * largest + math.sqrt(K) * (
        r.stored("state", "C", least) + errors.lost[..., 0]
    )
    exact = growth * exact + norm(added, -2)
    computed = factor * (growth * computed + bias) + norm(added.abs() + of_added, -2)
    return exact, computed, torch.maximum(largest, computed)


def applied(errors: ChunkErrors, kept: Tensor) -> Tensor:
    """[K, V] what making M = Diag(exp G_c) - kg^T w and kg^T u apart, and their sum, adds to S:
    terms that v_new has cancelled are summed by themselves, over C tokens and then over K channels.
    M is stored, and so is S as it meets M.

    Args:
        kept: the largest that Diag(exp G_c) S may be.
    """
    r, keys, M = errors.r, errors.kg_most.mT, errors.transition.abs()
    d_S = r.stored("state", "C", errors.S_most)
    S = errors.S_most + d_S
    of_S, of_u = keys @ (errors.w_most @ S), keys @ errors.u_most
    sums = r.sums("state", errors.C + errors.K) * (kept + 2 * (of_S + of_u))
    most = M + r.sums("state", errors.C) * (keys @ errors.w_most)
    return sums + M @ d_S + r.stored("state", "M", most) @ S


def _joins(errors: ChunkErrors) -> float:
    """What the products of one map with others and with a column cost, as a factor."""
    r, root = errors.r, math.sqrt(errors.K)
    sums = r.sums("state", errors.K)
    matrices = (1 + root * r.relative("state", "M")) * (1 + errors.K * sums)
    column = (1 + r.relative("state", "C")) * (1 + root * sums) * (1 + r.relative("state", "S"))
    return matrices * column


def _missed_of_map(errors: ChunkErrors) -> Tensor:
    """[K, K] error of M = Diag(exp G_c) - kg^T w as it is stored."""
    r, keys, w = errors.r, errors.kg_most.mT, errors.c.w.abs()
    missed = errors.d_kg.mT @ errors.w_most + errors.c.kg.abs().mT @ (errors.w_most - w)
    kept = errors.last * (1 + errors.d_decay[..., -1:, :].mT)
    missed = missed + torch.diag_embed((kept - errors.last).squeeze(-1))
    size = torch.diag_embed(kept.squeeze(-1)) + keys @ errors.w_most
    missed = missed + r.sums("state", errors.C) * size
    return missed + r.stored("state", "M", errors.transition.abs() + missed)


def _missed_of_added(errors: ChunkErrors) -> Tensor:
    """[K, V] error of C = kg^T u."""
    keys, u = errors.kg_most.mT, errors.c.u.abs()
    missed = errors.d_kg.mT @ errors.u_most + errors.c.kg.abs().mT @ (errors.u_most - u)
    return missed + errors.r.sums("state", errors.C) * (keys @ errors.u_most)
