"""Kernels of short chunks that store decays as two factors, exp(G_i) and exp(-G_j).

A hard reset has no second factor, and sums past 88 nats overflow it: chunks with a reset take the
stages that form differences.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from kdaverify.budgets.emulate import residual_state, residual_wy
from oracles.chunk import STAGES, Chunk


def factored_scores(c: Chunk) -> None:
    """Math: 3.2 as (q exp G) (k exp -G)^T."""
    if c.resets is not None:
        STAGES.scores(c)
        return
    q, k, beta = c.tokens.q, c.tokens.k, c.tokens.beta[..., None]
    back = c.store("k_out", k * _outward(c)).transpose(-1, -2)
    c.Aqk = c.store("Aqk", c.scale * c.dot(c.store("q_in", q * _inward(c)), back).tril())
    c.Akk = c.store("Akk", c.dot(c.store("k_in", beta * k * _inward(c)), back).tril(-1))


def factored_wy(c: Chunk) -> None:
    """Math: 3.4 with qg and kg made from the factors."""
    STAGES.wy(c)
    _from_factors(c)


def factored_residual_wy(c: Chunk) -> None:
    """The same of the residual form."""
    residual_wy(c)
    _from_factors(c)


def factored_output(c: Chunk) -> None:
    """Math: 3.6 with both terms stored before they are added."""
    inter = c.store("o_part", c.scale * c.dot(c.qg, c.h))
    intra = c.store("o_part", c.dot(c.Aqk, c.v_new))
    c.o = c.store("o", inter + intra)


def column_scores(c: Chunk) -> None:
    """Math: 3.2 with beta on the columns, in k exp(-G):
    beta_j instead of beta_i, undone by a v_new that lacks it.
    """
    if c.resets is not None:
        STAGES.scores(c)
        return
    c.qg = c.store("qg", c.scale * c.tokens.q * c.decay(slice(None)))
    back = _columns(c).transpose(-1, -2)
    c.Aqk = c.store("Aqk", c.dot(c.qg, back).tril())
    # substituted where it is accumulated
    c.Akk = c.dot(c.store("k_in", c.tokens.k * c.decay(slice(None))), back).tril(-1)


def column_wy(c: Chunk) -> None:
    """Math: 3.4 of v_new / beta: w = R k exp(G), u = R v;
    kg is made of the stored columns, so it is rounded twice.
    """
    if c.resets is not None:
        factored_wy(c)
        return
    c.w = c.store("w", c.dot(c.R, c.store("k_in", c.tokens.k * c.decay(slice(None)))))
    c.u = c.store("u", c.dot(c.R, c.tokens.v))
    c.kg = c.store("kg", _columns(c) * c.store("factor", c.decay(slice(-1, None))))


def column_output(c: Chunk) -> None:
    """Math: 3.6 with the scale in qg."""
    if c.resets is not None:
        STAGES.output(c)
        return
    c.o = c.store("o", c.dot(c.qg, c.h) + c.dot(c.Aqk, c.v_new))


def difference_scores(c: Chunk) -> None:
    """Math: 3.2 of keys without beta, which multiplies the rows of their products;
    the scale is in qg.
    """
    if c.resets is not None:
        STAGES.scores(c)
        return
    _keys_and_queries(c)
    back = c.store("k_out", c.tokens.k * _outward(c)).transpose(-1, -2)
    c.Aqk = c.store("Aqk", c.dot(c.qg, back).tril())
    c.Akk = c.tokens.beta[..., None] * c.dot(c.w, back).tril(-1)  # inverted where it is accumulated


def difference_wy(c: Chunk) -> None:
    """Math: 3.4 with nothing solved and no beta: w = k exp(G), u = v."""
    if c.resets is not None:
        residual_wy(c)
        return
    _keys_and_queries(c)
    c.u = c.tokens.v
    c.kg = c.store(
        "kg",
        c.store("k_out", c.tokens.k * _outward(c)) * c.store("factor", c.decay(slice(-1, None))),
    )


def difference_state(c: Chunk) -> None:
    """Math: 3.5 with v_new = R beta (v - k exp(G) h): prediction, difference and their product with
    beta are stored in turn.
    """
    if c.resets is not None:
        residual_state(c)
        return
    c.h = c.store("h", c.S)
    left = c.store("residual", c.u - c.store("prediction", c.dot(c.w, c.h)))
    c.v_new = c.store(
        "v_new",
        c.dot(c.R, c.store("residual", c.store("rounded_beta", c.tokens.beta[..., None]) * left)),
    )
    carried = c.S * c.decay(slice(-1, None)).transpose(-1, -2)
    c.S = c.store("S", carried + c.dot(c.kg.transpose(-1, -2), c.v_new))


def difference_output(c: Chunk) -> None:
    """Math: 3.6 with the scale in qg, both terms stored before they are added."""
    if c.resets is not None:
        STAGES.output(c)
        return
    c.o = c.store(
        "o", c.store("o_part", c.dot(c.qg, c.h)) + c.store("o_part", c.dot(c.Aqk, c.v_new))
    )


def _keys_and_queries(c: Chunk) -> None:
    c.w = c.store("k_in", c.tokens.k * _inward(c))
    c.qg = c.store("qg", c.scale * c.store("q_in", c.tokens.q * _inward(c)))


def _columns(c: Chunk) -> Tensor:
    return c.store("k_out", c.tokens.beta[..., None] * c.tokens.k * _outward(c))


def _from_factors(c: Chunk) -> None:
    if c.resets is None:
        last = c.store("factor", c.decay(slice(-1, None)))
        c.qg = c.store("qg", c.tokens.q * _inward(c))
        c.kg = c.store("kg", c.store("k_back", c.tokens.k * _outward(c)) * last)


def _inward(c: Chunk) -> Tensor:
    return c.store("factor", c.decay(slice(None)))


def _outward(c: Chunk) -> Tensor:
    return c.store("factor", c.arithmetic.exp(-c.G))


FACTORED = replace(STAGES, scores=factored_scores, wy=factored_wy, output=factored_output)
FACTORED_COLUMNS = replace(STAGES, scores=column_scores, wy=column_wy, output=column_output)
FACTORED_DIFFERENCE = replace(
    STAGES,
    scores=difference_scores,
    wy=difference_wy,
    state=difference_state,
    output=difference_output,
)
FACTORED_RESIDUAL = replace(FACTORED, wy=factored_residual_wy, state=residual_state)
