"""The chunk form with shared gates: one exponential a pair, decays after the products.

No operand of a product with the state is decayed: there is no qg and no kg. What is decayed is the
product itself, in the accumulator's format, or v_new on its way into the state. Scores are made
again where they are read, and dq and dk are stored where a stage is done with them, so gradients
round more often than those of KDA's kernels, and outputs less.
Source: fla-core 0.6.0, fla/ops/gated_delta_rule and fla/ops/common (chunk_delta_h, chunk_o).
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets import emulate
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.scores_backward import SCALED_STATE, scaled_first
from kdaverify.budgets.solves import identity
from oracles.chunk import Chunk, Stage, Stages
from oracles.chunk_backward import EVERY, LAST, BackwardStages, ChunkGradients


def shared(c: Chunk) -> Chunk:
    """The chunk with the sums of its one gate alone: [C, 1] in place of [C, K]."""
    one = copy.copy(c)
    one.G = c.G[..., :1]
    one.resets, one.rest = (None if x is None else x[..., :1] for x in (c.resets, c.rest))
    return one


def pairs(c: Chunk) -> Tensor:
    """D [C, C] of math.md 3.2, of one channel for all."""
    return shared(c).pair_decay(EVERY)[..., 0]


def to_each(c: Chunk) -> Tensor:
    """exp(G_i) [C, 1]."""
    return shared(c).decay(EVERY)


def to_end(c: Chunk) -> Tensor:
    """exp(G_c - G_i) [C, 1]."""
    return shared(c).decay(LAST, EVERY)


def whole(c: Chunk) -> Tensor:
    """exp(G_c) [1, 1]."""
    return shared(c).decay(LAST)


def scores(c: Chunk) -> None:
    """Math: 3.2. Writes Akk; Aqk, without the scale, is made where it is read."""
    c.Akk = c.store(
        "Akk", (c.tokens.beta[..., None] * c.dot(c.tokens.k, _t(c.tokens.k)) * pairs(c)).tril(-1)
    )


def wy(c: Chunk) -> None:
    """Math: 3.4. Writes w, which is decayed, and u."""
    beta = c.tokens.beta[..., None]
    c.w = c.store(
        "w", c.dot(c.R, c.store("kb", c.store("beta_k_wy", beta * c.tokens.k) * to_each(c)))
    )
    c.u = c.store("u", c.dot(c.R, c.store("vb", beta * c.tokens.v)))


def state(c: Chunk) -> None:
    """Math: 3.5. Writes h and v_new, advances S: v_new is stored before it is decayed, and decayed
    from what it was before that.
    """
    c.h = c.store("h", c.S)
    _advance(c, c.u - c.dot(c.w, c.h))


def map_parts(c: Chunk) -> tuple[Tensor, Tensor]:
    """What `maps.Parts` are of one gate for all channels: k decayed to the end, and exp(G_c) I."""
    channels = torch.eye(c.tokens.k.shape[-1], dtype=c.w.dtype, device=c.w.device)
    return c.store("kg", c.tokens.k * to_end(c)), whole(c) * channels


def residual_wy(c: Chunk) -> None:
    """Math: 3.4 of kernels that apply R after the state is subtracted: w and u stay unsolved."""
    solved, c.R = c.R, identity(c.R)
    wy(c)
    c.R = solved


def residual_state(c: Chunk) -> None:
    """Math: 3.5 with v_new = R (beta v - beta k exp(G) h)."""
    c.h = c.store("h", c.S)
    _advance(c, c.dot(c.R, c.store("residual", c.u - c.dot(c.w, c.h))))


def substituted_state(c: Chunk) -> None:
    """Math: 3.5 with (I + Akk) v_new = beta v - beta k exp(G) h solved for v_new."""
    c.h = c.store("h", c.S)
    _advance(c, c.arithmetic.substitute(c.Akk, c.store("residual", c.u - c.dot(c.w, c.h))))


def _advance(c: Chunk, v_new: Tensor) -> None:
    c.v_new = c.store("v_new", v_new)
    decayed = c.store("v_decayed", v_new * to_end(c))
    c.S = c.store("S", c.added(c.S * whole(c), _t(c.tokens.k), decayed))


def output(c: Chunk) -> None:
    """Math: 3.6, the scale last. Writes o."""
    c.Aqk = (c.dot(c.tokens.q, _t(c.tokens.k)) * pairs(c)).tril()
    inter, intra = to_each(c) * c.dot(c.tokens.q, c.h), c.dot(c.store("Aqk", c.Aqk), c.v_new)
    c.o = c.store("o", c.scale * inter + c.scale * intra)


def scaled_output(c: Chunk) -> None:
    """Math: 3.6 with the scale in the scores before they are stored.

    Of one-hot keys and gates of 0 every score is the scale itself, and o leans by its rounding: a
    right kernel was rejected for a bias of 1.5 times its tolerance.
    """
    c.Aqk = (c.dot(c.tokens.q, _t(c.tokens.k)) * pairs(c)).tril()
    inter = to_each(c) * c.dot(c.tokens.q, c.h)
    c.o = c.store("o", c.scale * inter + c.dot(c.store("Aqk", c.scale * c.Aqk), c.v_new))


def dv_local(b: ChunkGradients) -> None:
    """Math: VJP of 3.6 in v_new. Writes dv_new, the part within the chunk; the scores are rounded
    with the scale in them.
    """
    b.dv_new = b.store("dv_local", b.dot(_t(b.store("Aqk", b.c.scale * b.c.Aqk)), b.do))


def state_bwd(b: ChunkGradients) -> None:
    """Math: VJP of 3.5, and of 3.6 in h. Writes dh, completes dv_new,
    takes dS to the state before the chunk.
    """
    c = b.c
    b.dh = b.store("dh", b.dS)
    b.dv_new = b.store("dv_new", b.dv_new + to_end(c) * b.dot(c.tokens.k, b.dh))
    given = c.scale * b.dot(_t(b.store("q_decayed", c.tokens.q * to_each(c))), b.do)
    b.dS = b.store("dS", b.dS * whole(c) + given - b.dot(_t(c.w), b.dv_new))


def dA(b: ChunkGradients) -> None:
    """Math: VJP of 3.6 in q k^T. Writes dAqk, decayed."""
    b.dAqk = b.store("dAqk", (b.dot(b.do, _t(b.c.v_new)) * pairs(b.c) * b.c.scale).tril())


def dqkwg(b: ChunkGradients, *, minus: float = -1.0) -> None:
    """Math: VJP of 3.4, 3.5 and 3.6 in what they read of q, k, h. Writes dw, and dq, dk, dG but for
    what passes through w and u.

    Args:
        minus: the sign of what is subtracted; 1 adds up the sizes of all terms.

    The pairs (i, i) are in both sums of dG and cancel but for roundings; so does what the last row
    gives to its own decay.
    """
    c, q, k = b.c, b.c.tokens.q, b.c.tokens.k
    b.dw = b.store("dw", minus * b.dot(b.dv_new, _t(c.h)))
    read = c.scale * to_each(c) * b.dot(b.do, _t(c.h))
    written = to_end(c) * b.dot(c.v_new, _t(b.dh))
    held = c.arithmetic.total(b.store("h_dh", (c.h * b.dh).flatten(-2)))[..., None, None]
    end = whole(c) * held + b.row_sum(k * written).sum(-1)[..., None, None]
    dq, dk = read + b.dot(b.dAqk, k), written + b.dot(_t(b.dAqk), q)
    b.dG = b.store(
        "dG",
        (b.row_sum(q * dq) + minus * b.row_sum(k * dk))[..., None] + end.masked_fill(~b.last, 0.0),
    )
    b.dq, b.dk = b.store("dq_done", dq), b.store("dk_part", dk)


def wy_bwd(b: ChunkGradients, *, minus: float = -1.0) -> None:
    """Math: VJP of 3.3, of 3.4 in w and u, and of 3.2 in k k^T. Writes dv, dbeta, the other part of
    dk, adds to dG.

    Args:
        minus: as of `dqkwg`.
    """
    k, v, beta = b.c.tokens.k, b.c.tokens.v, b.c.tokens.beta[..., None]
    decay, back = to_each(b.c), _t(b.c.R)
    dkb, dvb = b.dot(back, b.dw), b.dot(back, b.dv_new)
    decayed = k * (beta * decay)
    dR = b.dot(b.dw, _t(b.store("kb", decayed))) + b.dot(b.dv_new, _t(b.store("vb", beta * v)))
    inner = b.dot(b.store("dR", dR.tril(-1)), back)
    b.dAkk = b.store("dAkk", (minus * b.dot(back, b.store("R_dR", inner)) * pairs(b.c)).tril(-1))
    b.dv = b.store("dv", beta * dvb)
    through = b.dot(b.dAkk, k)
    begun = b.store("dbeta_wy", b.row_sum(dvb * v) + b.row_sum(dkb * k * decay))
    b.dbeta = b.store("dbeta", begun + b.row_sum(through * k))
    weighed, read = b.dAkk * (beta * b.dot(k, _t(k))), b.store("kb_gate", decayed)
    b.dG = b.store(
        "dG",
        b.dG
        + (b.row_sum(dkb * read) + b.row_sum(weighed) + minus * b.row_sum(_t(weighed)))[..., None],
    )
    first = b.store("dk_w", dkb * beta * decay)
    second = beta * through + b.dot(_t(b.dAkk), b.store("beta_k", beta * k)) + first
    b.dk = torch.stack((b.dk, b.store("dk_wy", second)), dim=-1)


def nothing_left(b: ChunkGradients) -> None:
    """Math: VJP of 3.2; what it gives is in dq, dk and dG already."""
    del b


def cumsum_bwd(b: ChunkGradients) -> None:
    """Math: VJP of 3.1. Writes dg [C, 1];
    a hard reset is in no sum, so its gradient is exactly 0.
    """
    dg = b.dG.flip(-2).cumsum(-2).flip(-2)
    b.dg = b.store("dg", dg.masked_fill(b.c.tokens.g[..., :1].isneginf(), 0.0))


FORWARD: Final = Stages(scores=scores, wy=wy, state=state, output=output)
RESIDUAL: Final = replace(FORWARD, wy=residual_wy, state=residual_state)
SUBSTITUTED: Final = replace(RESIDUAL, state=substituted_state)
_OF_STATES: Final[Mapping[Stage, Stages]] = {
    emulate.residual_state: RESIDUAL,
    emulate.substituted_state: SUBSTITUTED,
}
"""By the stage of kernels with a gate a channel: where R is applied, or not made."""
BACKWARD: Final = BackwardStages(
    dv_local=dv_local,
    dA=dA,
    state_bwd=state_bwd,
    dqkwg=dqkwg,
    wy_bwd=wy_bwd,
    intra_bwd=nothing_left,
    cumsum_bwd=cumsum_bwd,
)
SCALED: Final = replace(BACKWARD, state_bwd=scaled_first(state_bwd))


def of_one_gate(stages: Stages) -> Stages:
    """The pipeline with the same sums of gates, the same solve, and R and the scale applied at the
    same place.
    """
    ours = _OF_STATES.get(stages.state, FORWARD)
    early = stages.output is emulate.scaled_output
    return replace(
        ours,
        cumsum=stages.cumsum,
        solve=stages.solve,
        output=scaled_output if early else ours.output,
    )


def members_of_one_gate(members: Sequence[Emulator]) -> Iterator[Emulator]:
    """The reference kernels, with the stages that one gate leaves: the rest stays.

    One more applies R after the state is subtracted, as torch ports do.
    """
    made = [
        replace(
            member,
            stages=of_one_gate(member.stages),
            backward=SCALED if member.backward.state_bwd is SCALED_STATE else BACKWARD,
        )
        for member in members
    ]
    yield from made
    yield replace(
        made[0], name="residual form", stages=replace(RESIDUAL, solve=made[0].stages.solve)
    )


def _t(matrix: Tensor) -> Tensor:
    return matrix.transpose(-1, -2)
