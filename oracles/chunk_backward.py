"""The backward of KDA in chunks, stage by stage, as oracles.chunk for the forward.

Each stage is the vector-Jacobian product of the forward stages it names; fused kernels run them in
this order too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from oracles.arithmetic import NATIVE, Arithmetic, Shape, pass_over
from oracles.chunk import STAGES, Chunk, Stages
from oracles.chunk_walk import Staged, walk_chunks
from oracles.gradients import Cotangents, Gradients, over_channels, over_key_heads, zero_gradients
from oracles.inputs import Inputs
from oracles.tokens import OfSequences, Tensors

EVERY, LAST = slice(None), slice(-1, None)


@dataclass
class ChunkGradients(OfSequences):
    """The gradients of one chunk of live sequences; stages read earlier ones.

    Shapes are [n, HV, ...] with n live sequences and C tokens; dX is the gradient of the X of
    math.md 3. dq, dk, dG and dbeta grow over several stages; dq and dk belong to a value head.
    """

    c: Chunk
    do: Tensor  # [C, V]
    # [K, V] of the state after the chunk; state_bwd makes it that of the state before
    dS: Tensor = field(init=False)
    # [K, V] of the state after the chunk, as the dot products read it
    dh: Tensor = field(init=False)
    dAqk: Tensor = field(init=False)  # [C, C] of Aqk / scale, so with the scale in it
    dAkk: Tensor = field(init=False)  # [C, C]
    # [C, V] also du; before state_bwd only the part that o gives
    dv_new: Tensor = field(init=False)
    dw: Tensor = field(init=False)  # [C, K]
    dq: Tensor = field(init=False)  # [C, K]
    # [C, K], or [C, K, parts] at the end where a kernel stores it in several
    dk: Tensor = field(init=False)
    dv: Tensor = field(init=False)  # [C, V]
    dbeta: Tensor = field(init=False)  # [C]
    dG: Tensor = field(init=False)  # [C, K]
    dG_part: Tensor = field(init=False)  # [C, 1] but for what passes through w and u
    dg: Tensor = field(init=False)  # [C, K]

    def store(self, name: str, tensor: Tensor) -> Tensor:
        return self.c.store(name, tensor)

    def dot(self, a: Tensor, b: Tensor) -> Tensor:
        return self.c.dot(a, b)

    def row_sum(self, products: Tensor) -> Tensor:
        return self.c.arithmetic.row_sum(products)

    @property
    def followed(self) -> Tensor:
        """[n, 1, C, 1], True on the rows that another row of the sequence follows in the chunk."""
        valid = self.c.tokens.valid.to(self.do.device)
        return torch.cat((valid[:, 1:], torch.zeros_like(valid[:, :1])), dim=1)[:, None, :, None]

    @property
    def last(self) -> Tensor:
        """[n, 1, C, 1], True on the sequence's last row in the chunk, also in a short tail."""
        return self.c.tokens.valid.to(self.do.device)[:, None, :, None] & ~self.followed


BackwardStage = Callable[[ChunkGradients], None]
Dot = Callable[[Tensor, Tensor], Tensor]
Within = Callable[[Chunk, slice], tuple[Tensor, Tensor] | None]


def dv_local(b: ChunkGradients) -> None:
    """Math: VJP of 3.6 in v_new. Writes dv_new, the part within the chunk."""
    b.dv_new = b.store("dv_local", b.dot(_t(b.c.Aqk), b.do))


def dA(b: ChunkGradients) -> None:
    """Math: VJP of 3.6 in Aqk. Writes dAqk."""
    b.dAqk = b.store("dAqk", (b.c.scale * b.dot(b.do, _t(b.c.v_new))).tril())


def state_bwd(b: ChunkGradients) -> None:
    """Math: VJP of 3.5, and of 3.6 in h. Writes dh, completes dv_new,
    takes dS to the state before the chunk.
    """
    c = b.c
    b.dh = b.store("dh", b.dS)
    b.dv_new = b.store("dv_new", b.dv_new + b.dot(c.kg, b.dh))
    carried, given = b.dS * _t(c.decay(LAST)), b.store("dS_o", c.scale * b.dot(_t(c.qg), b.do))
    b.dS = b.store("dS", carried + given - b.dot(_t(c.w), b.dv_new))


def dqkwg(b: ChunkGradients) -> None:
    """Math: VJP of 3.4 in qg and kg, of 3.5 and 3.6 in what they read. Writes dw and the parts of
    dq, dk, dG that pass through a state.

    The chunk's decay acts on h and on every row but the last, whose own decay to the chunk's end is
    no gate at all: that row takes no part, rather than adding what the next term subtracts.
    """
    c, q, k = b.c, b.c.tokens.q, b.c.tokens.k
    b.dq = b.store("dq_state", c.scale * b.dot(b.do, _t(c.h)) * c.decay(EVERY))
    b.dk = b.store("dk_state", b.dot(c.v_new, _t(b.dh)) * c.decay(LAST, EVERY))
    b.dw = b.store("dw", -b.dot(b.dv_new, _t(c.h)))
    held = b.store("h_dh", c.arithmetic.total(b.store("h_dh", c.h * b.dh)))[..., None, :] * c.decay(
        LAST
    )
    moved = (k * b.dk).masked_fill(~b.followed, 0.0)
    end = held + moved.sum(-2, keepdim=True)
    b.dG = b.store("dG_state", q * b.dq - moved + end.expand_as(moved).masked_fill(~b.last, 0.0))


def wy_bwd(b: ChunkGradients, *, right_first: bool = False) -> None:
    """Math: VJP of 3.3 and of 3.4 in w and u. Writes dv, dbeta, dAkk, adds to dk and dG.

    Only the part of dR below the diagonal reaches dAkk.

    Args:
        right_first: of the products R^T dR R^T, the right one is taken first.
    """
    k, v, beta, back = b.c.tokens.k, b.c.tokens.v, b.c.tokens.beta, _t(b.c.R)
    decay = b.c.decay(EVERY)
    decayed = b.store("k_decayed", k * decay)
    dkb, dvb = b.store("dkb", b.dot(back, b.dw)), b.store("dvb", b.dot(back, b.dv_new))
    b.dv = b.store("dv", beta[..., None] * dvb)
    b.dbeta = b.store("dbeta_wy", b.row_sum(dvb * v) + b.row_sum(dkb * k * decay))
    b.dk = b.store("dk_wy", b.dk + beta[..., None] * dkb * decay)
    b.dG = b.store("dG_wy", b.dG + beta[..., None] * dkb * k * decay)
    dR = (b.dot(b.dv_new, _t(v)) + b.dot(b.dw, _t(decayed))) * beta[..., None, :]
    dR = b.store("dR", dR.tril(-1))
    inner = b.store("R_dR", b.dot(dR, back) if right_first else b.dot(back, dR))
    outer = b.dot(back, inner) if right_first else b.dot(inner, back)
    b.dAkk = b.store("dAkk", -outer.tril(-1))


def intra_bwd(
    b: ChunkGradients,
    *,
    across: Dot | None = None,
    own_apart: bool = True,
    within: Within | None = None,
) -> None:
    """Math: VJP of 3.2. Completes dq, dk, dbeta, dG.

    The pair (i, i) has no decay between its rows: it is added to dq and dk after dG has taken what
    the other pairs give.

    Args:
        across: dot products of pairs of different sub-blocks; by default those of the arithmetic.
        own_apart: False: it is one of the pairs, and what it gives to dG cancels but for roundings.
        within: the decays between the rows of a sub-block as factors [s, K] of the later and of the
            earlier row, where they are such products; None: each pair takes its own exponent.
    """
    q, k, beta = b.c.tokens.q, b.c.tokens.k, b.c.tokens.beta[..., None]
    dq, dkb, dk = _pairs(
        b, b.dAqk.tril(-1 if own_apart else 0), across or b.c.arithmetic.dot, within
    )
    b.dbeta = b.store("dbeta", b.dbeta + b.row_sum(dkb * k))
    b.dG = b.store("dG", b.dG + q * dq + (beta * dkb - dk) * k)
    if own_apart:
        own = b.dAqk.diagonal(dim1=-2, dim2=-1)[..., None]
        dq, dk = dq + own * k, dk + own * q
    b.dq = b.store("dq_head", b.dq + dq)
    b.dk = b.store("dk_head", b.dk + beta * dkb + dk)


def _pairs(
    b: ChunkGradients, dAqk: Tensor, across_by: Dot, within: Within | None
) -> tuple[Tensor, Tensor, Tensor]:
    """What the pairs of `dAqk` and dAkk give, [C, K] each: to q_i, to (beta k)_i, and to k_j.

    Decays between sub-blocks are products of two, each at most 1: relative to the first row of the
    later one on the way to q and beta k, as the scores are, and to the last row of the earlier one
    on the way to k. What is stored of beta k is an operand of products: where every pair has a
    decay of its own there are none.
    """
    c, q, k = b.c, b.c.tokens.q, b.c.tokens.k
    kb = c.tokens.beta[..., None] * k
    apart = torch.stack((q, kb), dim=-3)  # of shape [2, C, K]
    both = torch.stack((q, b.store("beta_k", kb)), dim=-3)
    dA = torch.stack((dAqk, b.dAkk), dim=-3)  # [2, C, C]
    C, size = k.shape[-2], c.arithmetic.sub_block
    later: list[Tensor] = []  # [2, s, K] of every sub-block
    earlier: list[Tensor] = []  # [s, K]
    for first in range(0, C, size):
        rows = slice(first, min(first + size, C))
        if c.is_padding(rows, both[..., rows, :]):
            inside = within is not None and within(c, rows) is not None
            _pass_over(c.arithmetic, across_by, rows, k.shape, inside=inside)
            later.append(torch.zeros_like(both[..., rows, :]))
            earlier.append(torch.zeros_like(k[..., rows, :]))
            continue
        own, factors = dA[..., rows, rows], None if within is None else within(c, rows)
        if factors is None:
            up, down = _pairs_apart(
                b, own, c.pair_decay(rows), apart[..., rows, :], k[..., rows, :]
            )
        else:
            up = _to_rows(b.dot, own, *factors, k[..., rows, :])
            down = _to_columns(b.dot, own, *factors, both[..., rows, :])
        if first:
            up = up + _from_earlier(c, across_by, dA, rows)
        if rows.stop < C:
            down = down + _from_later(c, across_by, dA, rows, both)
        later.append(up)
        earlier.append(down)
    dq, dkb = torch.cat(later, dim=-2).unbind(-3)
    return dq, dkb, torch.cat(earlier, dim=-2)


def _from_earlier(c: Chunk, across: Dot, dA: Tensor, rows: slice) -> Tensor:
    """What the pairs of `rows` and of the sub-blocks before give to q and beta k."""
    before, anchor = slice(0, rows.start), slice(rows.start, rows.start + 1)
    decays = c.decay(rows, anchor), c.decay(anchor, before)
    return _to_rows(across, dA[..., rows, before], *decays, c.tokens.k[..., before, :])


def _from_later(c: Chunk, across: Dot, dA: Tensor, rows: slice, both: Tensor) -> Tensor:
    """What the pairs of `rows` and of the sub-blocks after give to k."""
    after, anchor = slice(rows.stop, dA.shape[-1]), slice(rows.stop - 1, rows.stop)
    decays = c.decay(after, anchor), c.decay(anchor, rows)
    return _to_columns(across, dA[..., after, rows], *decays, both[..., after, :])


def _pass_over(
    arithmetic: Arithmetic, across: Dot, rows: slice, of_keys: Shape, *, inside: bool
) -> None:
    """What the block of `rows` would draw in `_pairs`, of keys [..., C, K].

    Args:
        inside: whether the decays between its rows are factors, which were made.
    """
    (*many, C, K), size = of_keys, rows.stop - rows.start
    exp, dot = (partial(pass_over, one) for one in (arithmetic.exp, arithmetic.dot))
    if inside:
        dot((*many, 2, size, size), (*many, 1, size, K))
        dot((*many, size, 2 * size), (*many, 2 * size, K))
    else:
        exp((*many, size, size, K))
        dot((*many, size, 2, size), (*many, size, size, K))
        dot((*many, size, K, 2 * size), (*many, size, 2 * size, 1))
    for others, operands in (
        (rows.start, ((*many, 2, size, rows.start), (*many, 1, rows.start, K))),
        (C - rows.stop, ((*many, size, 2 * (C - rows.stop)), (*many, 2 * (C - rows.stop), K))),
    ):
        if others:
            exp((*many, size, K))
            exp((*many, others, K))
            pass_over(across, *operands)


def _to_rows(dot: Dot, dA: Tensor, inward: Tensor, outward: Tensor, k: Tensor) -> Tensor:
    """Math: sum_j dA_ij D_ij k_j with D_ij = inward_i outward_j, for both dA [2, i, j] at once."""
    return inward[..., None, :, :] * dot(dA, (k * outward)[..., None, :, :])


def _to_columns(dot: Dot, dA: Tensor, inward: Tensor, outward: Tensor, both: Tensor) -> Tensor:
    """Math: sum_i dA_ij D_ij x_i with D_ij = inward_i outward_j, summed over both dA [2, i, j] and
    their x [2, i, K].
    """
    return outward * dot(_t(dA.flatten(-3, -2)), (both * inward[..., None, :, :]).flatten(-3, -2))


def _pairs_apart(
    b: ChunkGradients, dA: Tensor, decay: Tensor, both: Tensor, k: Tensor
) -> tuple[Tensor, Tensor]:
    """The same two sums where every pair has a decay [s, s, K] of its own."""
    up = b.dot(dA.transpose(-3, -2), decay * k[..., None, :, :]).transpose(-3, -2)
    # [s, K, 2s]
    spread = _t((decay[..., None, :, :, :] * both[..., None, :]).flatten(-4, -3).transpose(-3, -2))
    down = b.dot(spread, _t(dA.flatten(-3, -2))[..., None]).squeeze(-1)
    return up, down


def cumsum_bwd(b: ChunkGradients) -> None:
    """Math: VJP of 3.1. Writes dg; a hard reset is in no sum, so its gradient is exactly 0."""
    dg = b.dG.flip(-2).cumsum(-2).flip(-2)
    b.dg = b.store("dg", dg.masked_fill(b.c.tokens.g.isneginf(), 0.0))


@dataclass(frozen=True)
class BackwardStages:
    """The backward as a table: variants and faults replace entries (dataclasses.replace)."""

    dv_local: BackwardStage = dv_local
    dA: BackwardStage = dA
    state_bwd: BackwardStage = state_bwd
    dqkwg: BackwardStage = dqkwg
    wy_bwd: BackwardStage = wy_bwd
    intra_bwd: BackwardStage = intra_bwd
    cumsum_bwd: BackwardStage = cumsum_bwd

    @property
    def in_order(self) -> tuple[BackwardStage, ...]:
        return (
            self.dv_local,
            self.dA,
            self.state_bwd,
            self.dqkwg,
            self.wy_bwd,
            self.intra_bwd,
            self.cumsum_bwd,
        )


BACKWARD = BackwardStages()


def chunk_backward(
    inputs: Inputs,
    cotangents: Cotangents,
    *,
    chunk_size: int = 64,
    dtype: torch.dtype = torch.float64,
    arithmetic: Arithmetic = NATIVE,
    stages: Stages = STAGES,
    backward: BackwardStages = BACKWARD,
) -> Gradients[Tensor]:
    """Gradients of the chunk form, batched; any chunk size, short tails, hard resets.

    Math: section 5. After the forward's, tensors are stored in the order dv_local, dAqk, dh,
    dv_new, dS_o, dS, dq_state, dk_state, dw, h_dh (the product, then its sum), dG_state, k_decayed,
    dkb, dvb, dv, dbeta_wy, dk_wy, dG_wy, dR, R_dR, dAkk, beta_k, dbeta, dG, dq_head, dk_head, dg,
    the last chunk first; dq and dk come last, once, summed over the value heads of a key head.

    Args:
        inputs: the call; every tensor is cast to `dtype` first.
        cotangents: of o and S_T.
        chunk_size: C, tokens per chunk.
        dtype: the type computed in.
        arithmetic: the roundings; native operations of `dtype` by default.
        stages: the forward's, whose tensors the backward reads.
        backward: the stages, or a variant of them.
    Returns:
        Gradients of tensors in `dtype`, zero on padding.
    Raises:
        InputError: the cotangents do not fit the inputs.
    """
    do, dS = cotangents.of(inputs, dtype)
    if not any(inputs.lengths):
        return zero_gradients(inputs, dS)
    chunks: list[Chunk] = []

    def keep(c: Chunk) -> Tensors:
        chunks.append(c)
        return ()

    stages.walk(inputs, chunk_size, arithmetic, keep, dtype=dtype)
    staged = Staged(
        lambda tokens: ChunkGradients(chunks.pop(), *tokens.others),
        backward.in_order,
        slice(2, 3) if arithmetic.together else slice(0, 7),
        "dS",
        lambda b: (b.dq, b.dk, b.dv, b.dg, b.dbeta),
        number=stages.at_once,
    )
    dS, (dq, dk, dv, dg, dbeta) = walk_chunks(
        inputs,
        chunk_size,
        dS,
        staged,
        dtype=dtype,
        others=(do,),
        reverse=True,
        together=arithmetic.together,
    )
    dq, dk = _of_key_heads(inputs, dq, dk, arithmetic)
    return Gradients(dq, dk, dv, over_channels(inputs, dg), dbeta, dS)


def _of_key_heads(
    inputs: Inputs, dq: Tensor, dk: Tensor, arithmetic: Arithmetic
) -> tuple[Tensor, Tensor]:
    """Summed over the value heads of a key head."""
    dq, dk = (
        arithmetic.store(name, over_key_heads(inputs, x, arithmetic))
        for name, x in (("dq", dq), ("dk", dk))
    )
    # Kernels that leave dk in parts sum each of them over the value heads, and then the parts.
    return dq, arithmetic.store("dk", dk.sum(-1)) if dk.ndim > dq.ndim else dk


def _t(matrix: Tensor) -> Tensor:
    return matrix.transpose(-1, -2)
