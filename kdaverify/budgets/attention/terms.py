"""What attention's errors are relative to where terms cancel: scores, products of dS."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import torch
from torch import Tensor

from oracles.attention.pipeline import PackedRows, packed
from oracles.attention.segment import Segment

Gradients = tuple[Tensor, ...]
"""Of dq, dk, dv, and of the gradient of the sink where there is one."""

NEARLY_EQUAL: Final = 2.0**-30
"""Relative difference of weights of the same logits: far above float64's rounding, far below that
of 16 bits."""


def probabilities(segment: Segment) -> tuple[Tensor, Tensor]:
    """[h_kv, R, s_k] of keys, [h_kv, R] of the sink, float64; 0 where there are none."""
    rows = packed(segment, torch.float64)
    S = _logits(rows)
    a = S.new_full(S.shape[:2], -torch.inf) if rows.sink is None else rows.sink
    every = torch.cat((S, a[..., None]), -1)
    top = every.amax(-1, keepdim=True)
    w = torch.exp(every - torch.where(top == -torch.inf, 0.0, top))
    total = w.sum(-1, keepdim=True)
    P = w / torch.where(total == 0, 1.0, total)
    return P[..., :-1], P[..., -1]


def _logits(rows: PackedRows) -> Tensor:
    return (rows.q @ rows.k.mT * rows.scale).masked_fill(~rows.visible, -torch.inf)


def returned_probabilities(segment: Segment) -> tuple[Tensor, Tensor]:
    """Those whose logarithm of the sum LSE is."""
    return probabilities(segment if segment.lse_includes_sink else replace(segment, sink=None))


@dataclass(frozen=True)
class ForwardTerms:
    """What the errors of o and lse of a segment are relative to.

    Args:
        values: [H, s_q, d_v] sum_j P_ij |V_j|.
        scores: [H, s_q] sum_j P_ij |c| sum_d |q_id K_jd|, and P |a| of a sink that LSE includes.
        exponents: [H, s_q, d_v] P_a (|a| + |LSE|) of a sink a, LSE that of the keys alone: what
            rounding in its exponent, which all keys of a row share, is relative to.
        weights: [H, s_q] what roundings of P make of their sum: the root of the sum over all values
            of P of (P times its keys)^2, as keys of equal P are rounded alike.
        largest: [H, s_q, d_v] P_ij |V_j| of the key with the largest P.
        underflow: [H, s_q, d_v] sum over visible keys of |V_j| + 1: its error where every P and
            every product with V is wrong by 1.
    """

    values: Tensor
    scores: Tensor
    exponents: Tensor
    weights: Tensor
    largest: Tensor
    underflow: Tensor


@dataclass(frozen=True)
class GradientTerms:
    """What errors of a segment's dq, dk, dv are relative to, in their shapes; also dsink.

    Math: X = |dO| |V| + sum_j P |dO| |V| + |dL|,
        moduli: c sum_j D_ij |K_j|, c sum_i D_ij |q_i| and sum_i P_ij |dO_i|, where D = P X has the
            moduli of the terms of dS; of a sink sum_i P_i X_i, where its value is 0;
        underflow: the same sums over visible keys with X + 1 for D and 1 for P: what they lose
            together where every P and every dS is wrong by 1;
        complements: 0, and of a sink sum_i |<dO_i, o_i>|, with |dL| where LSE includes it: its
            error where every 1 - P is wrong by 1.
    """

    moduli: Gradients
    underflow: Gradients
    complements: Gradients


def forward_terms(segment: Segment) -> ForwardTerms:
    """Of one segment."""
    (P, _), v = probabilities(segment), segment.v.double()
    returned, of_sink = returned_probabilities(segment)
    rows = segment.q.shape[:2]
    sizes = v.masked_fill(~torch.isfinite(v), 0.0).abs()
    return ForwardTerms(
        (P @ sizes).view(*rows, v.shape[-1]),
        _score_terms(segment, returned, of_sink),
        _exponent_terms(segment).view(*rows, 1).expand(*rows, v.shape[-1]),
        _rounded_alike(returned).view(rows),
        _largest_term(P, sizes).view(*rows, v.shape[-1]),
        (packed(segment, torch.float64).visible.double() @ (sizes + 1)).view(*rows, v.shape[-1]),
    )


def _rounded_alike(P: Tensor) -> Tensor:
    """[h_kv, R] The root of the sum of squares, of equal values the square of their sum: where a
    list named the heaviest key twice, a kernel's lse was at 1.3 times its tolerance.
    """
    ordered = P.sort(-1).values
    steps = ordered.diff(dim=-1, prepend=ordered[..., :1])
    group = (steps > NEARLY_EQUAL * ordered).long().cumsum(-1)
    return torch.zeros_like(P).scatter_add_(-1, group, ordered).square().sum(-1).sqrt()


def _largest_term(P: Tensor, sizes: Tensor) -> Tensor:
    """[h_kv, R, d_v] P |V| of every row's heaviest key; 0 where there is no key."""
    if not P.shape[-1]:
        return P.new_zeros(*P.shape[:2], sizes.shape[-1])
    weight, at = P.max(-1, keepdim=True)
    return weight * sizes.gather(1, at.expand(-1, -1, sizes.shape[-1]))


def _score_terms(segment: Segment, P: Tensor, of_sink: Tensor) -> Tensor:
    """[H, s_q] What rounding in the scores of the keys that count is relative to."""
    rows = packed(segment, torch.float64)
    seen = rows.k.masked_fill(~torch.isfinite(rows.k), 0.0)
    sizes = rows.q.abs() @ seen.abs().mT * abs(rows.scale)
    found = (P * sizes).sum(-1)
    if rows.sink is not None:
        found = found + of_sink * rows.sink.abs().nan_to_num(posinf=0.0)
    return found.view(segment.q.shape[:2])


def _exponent_terms(segment: Segment) -> Tensor:
    """[h_kv, R] P_a (|a| + |LSE|); 0 without a sink."""
    rows = packed(segment, torch.float64)
    if rows.sink is None:
        return rows.q.new_zeros(rows.q.shape[:2])
    lse = torch.logsumexp(_logits(rows), -1)
    sizes = torch.sigmoid(rows.sink - lse) * (rows.sink.abs() + lse.abs())
    return torch.where(torch.isfinite(rows.sink + lse), sizes, 0.0)


def gradient_terms(segment: Segment, do: Tensor, dlse: Tensor | None) -> GradientTerms:
    """Of one segment.

    A component that all keys share multiplies the rounding of dS, whose rows sum to 0 only up to
    it: relative to dq itself a conforming kernel can be wrong by 27 %. Where a row sees one key, dS
    is the difference of two equal sums, which a kernel makes in different orders: its rounding is
    relative to their terms, not to dS, which is 0.
    """
    rows, (P, of_sink) = packed(segment, torch.float64), probabilities(segment)
    returned, _ = returned_probabilities(segment)
    shape = rows.q.shape[:2]
    signed = do.double().reshape(*shape, do.shape[-1])
    dO = signed.abs()
    dP = dO @ rows.v.abs().mT
    delta = (P * dP).sum(-1)
    dL = torch.zeros_like(delta) if dlse is None else dlse.double().reshape(shape).abs()
    X = P * (dP + delta[..., None]) + returned * dL[..., None]
    of_level = delta + (dL if segment.lse_includes_sink else 0.0)

    def sums(dS: Tensor, weights: Tensor, of_level: Tensor) -> Gradients:
        dq, dk = dS @ rows.k.abs(), dS.mT @ rows.q.abs()
        scale, rest = abs(rows.scale), [of_level.view(segment.q.shape[:2]).sum(1)]
        found = (dq * scale).view(segment.q.shape), dk * scale, weights.mT @ dO
        return found if rows.sink is None else (*found, *rest)

    def complements(dP: Tensor) -> Gradients:
        none = tuple(torch.zeros_like(x, dtype=P.dtype) for x in (segment.q, segment.k, segment.v))
        if rows.sink is None:
            return none
        level = (P * dP).sum(-1).abs() + (dL if segment.lse_includes_sink else 0.0)
        return *none, level.view(segment.q.shape[:2]).sum(1)

    seen, factor = rows.visible.double().expand_as(P), dP + (delta + dL)[..., None]
    return GradientTerms(
        sums(X, P, of_sink * of_level),
        sums(seen * (factor + 1), seen, of_level + 1),
        complements(signed @ rows.v.mT),
    )
