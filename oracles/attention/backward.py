"""The backward of softmax attention as kernels compute it, dS stored in 16 bits.

Math: mla.md 1.9,
    P = exp(S - lse)    delta_i = <dO_i, O_i>    dP = dO V^T    dS = P (dP - delta + dL)
    dQ = c dS K         dK = c dS^T Q            dV = P^T dO
Where q is scaled and stored, S and dK are of that q, as in automatic differentiation of the
forward, and dQ is c times its gradient.
With a sink a, lse includes it and da = sum_i exp(a - lse_i) (dL_i - delta_i). Where the lse that is
returned is that of the keys alone, dL moves exp(S - that lse) dL more, and not a.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from oracles.arithmetic import NATIVE, Arithmetic
from oracles.attention.design import OnlineDesign, Span
from oracles.attention.pipeline import PackedRows, packed
from oracles.attention.segment import Segment
from oracles.attention.softmax_precision import BLOCK

Gradients = tuple[Tensor, ...]
"""dq, dk, dv, and da of every row where there is a sink."""

TOGETHER = 2**22
"""Elements of products of blocks that are made together."""


@dataclass(frozen=True)
class Given:
    """What the backward receives beside q, k and v, rows packed as theirs.

    Args:
        o: [h_kv, R, d_v] as the forward stored it; lse: [h_kv, R], natural, with the sink.
        do: [h_kv, R, d_v]; dlse: [h_kv, R], zeros where the loss does not use lse.
        alone: [h_kv, R] the lse that was returned, where it is without the sink.
    """

    o: Tensor
    lse: Tensor
    do: Tensor
    dlse: Tensor
    alone: Tensor | None = None

    def rows(self, rows: slice) -> Given:
        """Of some of the rows."""
        o, lse, do, dlse = (x[:, rows] for x in (self.o, self.lse, self.do, self.dlse))
        return Given(o, lse, do, dlse, None if self.alone is None else self.alone[:, rows])


@dataclass(frozen=True)
class BlockGradient:
    """P, dP and dS [h_kv, R, n] of a block of keys from `first` to `end`, and its rows."""

    span: Span
    rows: PackedRows
    P: Tensor
    dP: Tensor
    dS: Tensor


def delta(run: AttentionBackward, given: Given) -> Tensor:
    """<dO, O> of every row; products and their sum are the accumulator's but where declared."""
    products = run.arithmetic.store("delta_product", given.do * given.o)
    return run.arithmetic.store("delta", products.sum(-1))


def recomputed(run: AttentionBackward, rows: PackedRows, given: Given) -> Tensor:
    """P from the stored lse; 0 for masked keys and rows without keys."""
    made = run.arithmetic.store("product", run.arithmetic.dot(rows.q, rows.k.mT))
    S = run.arithmetic.store("S", made) * rows.scale
    seen = rows.visible & (given.lse != -torch.inf)[..., None]
    exponent = torch.where(seen, S - given.lse[..., None], torch.full_like(S, -torch.inf))
    return run.arithmetic.store("exponential", torch.exp(exponent))


def d_scores(run: AttentionBackward, P: Tensor, dP: Tensor, delta: Tensor, dlse: Tensor) -> Tensor:
    """dS, before it is stored."""
    rounds = run.design.d_scores == "rounded"
    kept = run.arithmetic.store("P_backward", P) if rounds else P
    return kept * (dP - delta[..., None] + dlse[..., None])


def dq(run: AttentionBackward, dS: Tensor, rows: PackedRows) -> Tensor:
    """c dS K of one block of keys."""
    return run.arithmetic.store("dq_product", run.arithmetic.dot(dS, rows.k)) * rows.scale


def dk(run: AttentionBackward, dS: Tensor, rows: PackedRows) -> Tensor:
    """c dS^T q; the rows of all heads of a KV head are summed with it."""
    return run.arithmetic.dot(dS.mT, rows.q) * rows.scale


def dv(run: AttentionBackward, P: Tensor, given: Given) -> Tensor:
    """P^T dO."""
    return run.arithmetic.dot(run.arithmetic.store("P_backward", P).mT, given.do)


def dsink(run: AttentionBackward, a: Tensor, delta: Tensor, given: Given) -> Tensor:
    """dS of the sink [h_kv, R]: its value is 0."""
    P = torch.where(a == -torch.inf, torch.zeros_like(a), torch.exp(a - given.lse))
    dL = given.dlse if given.alone is None else torch.zeros_like(delta)
    return run.arithmetic.store("dsink_product", run.arithmetic.store("P_sink", P) * (dL - delta))


def through_maximum(run: AttentionBackward, made: list[BlockGradient], given: Given) -> None:
    """Adds the gradient of every block's running maximum to dS of the key that has it.

    Math: dm = <dO, P V> - sum_j P_j dP_j, which is 0 but for the roundings of P V and dP.

    Where blocks end is free, and with it which keys are a running maximum: every key that is one
    after 16 keys, or any number of them, has the dm of its block.
    """
    every = torch.cat([one.P for one in made], -1).cummax(-1).indices
    dS, first = torch.cat([one.dS for one in made], -1), 0
    for one in made:
        stored = run.arithmetic.dot(run.arithmetic.store("P", one.P), one.rows.v)
        forward = given.do * run.arithmetic.store("PV", stored)
        dm = forward.sum(-1, keepdim=True) - (one.P * one.dP).sum(-1, keepdim=True)
        end = first + one.P.shape[-1]
        ends = [*range(first + BLOCK - 1, end - 1, BLOCK), end - 1]
        keys = every[..., ends]
        again = torch.zeros_like(keys, dtype=torch.bool)
        again[..., 1:] = keys[..., 1:] == keys[..., :-1]
        dS = dS.scatter_add(-1, keys, dm.expand(keys.shape).masked_fill(again, 0.0))
        first = end
    for one, moved in zip(made, dS.split([x.P.shape[-1] for x in made], -1), strict=True):
        one.dS.copy_(moved)


def through_summed_maximum(run: AttentionBackward, made: list[BlockGradient], dL: Tensor) -> None:
    """Adds the gradient of the row's maximum to dS of the key that has it.

    Math: lse = m + ln sum exp(S - m), of which dm = dL - sum_j dS_j is 0 but for the roundings of
    dS and of its sum.

    Args:
        dL: [h_kv, R] of a row, without what its sink has of it.
    """
    P = torch.cat([one.P for one in made], -1)
    dS = torch.cat([one.dS for one in made], -1)
    if not P.shape[-1]:
        return
    seen = (P > 0).any(-1, keepdim=True)
    dm = (dL - run.arithmetic.row_sum(dS))[..., None].masked_fill(~seen, 0.0)
    dS = dS.scatter_add(-1, P.argmax(-1, keepdim=True), dm)
    for one, moved in zip(made, dS.split([x.P.shape[-1] for x in made], -1), strict=True):
        one.dS.copy_(moved)


@dataclass(frozen=True)
class AttentionBackwardStages:
    """Every stage of the backward; a fault replaces one."""

    delta: Callable[[AttentionBackward, Given], Tensor] = delta
    weights: Callable[[AttentionBackward, PackedRows, Given], Tensor] = recomputed
    d_scores: Callable[[AttentionBackward, Tensor, Tensor, Tensor, Tensor], Tensor] = d_scores
    dq: Callable[[AttentionBackward, Tensor, PackedRows], Tensor] = dq
    dk: Callable[[AttentionBackward, Tensor, PackedRows], Tensor] = dk
    dv: Callable[[AttentionBackward, Tensor, Given], Tensor] = dv
    dsink: Callable[[AttentionBackward, Tensor, Tensor, Given], Tensor] = dsink


BACKWARD = AttentionBackwardStages()


@dataclass(frozen=True)
class AttentionBackward:
    """The backward of a design under an arithmetic: its block, its direction."""

    design: OnlineDesign = OnlineDesign()  # noqa: RUF009 # frozen
    arithmetic: Arithmetic = NATIVE
    stages: AttentionBackwardStages = BACKWARD

    def __call__(
        self,
        segment: Segment,
        stored: tuple[Tensor, Tensor],
        loss: tuple[Tensor, Tensor | None],
        dtype: torch.dtype,
    ) -> Gradients:
        """dq [H, s_q, d_k], dk [h_kv, s_k, d_k], dv [h_kv, s_k, d_v]; and da [H] with a sink.

        Args:
            stored: o [H, s_q, d_v] and lse [H, s_q] as the forward stored them.
            loss: their cotangents, None where the loss does not depend on lse.
            dtype: the working type.
        """
        rows = packed(segment, dtype)
        q, flat, (do, dlse) = segment.q, rows.q.shape[:2], loss
        o, lse = (x.to(dtype).reshape(*flat, *x.shape[2:]) for x in stored)
        alone = None if rows.sink is None or segment.lse_includes_sink else lse
        given = Given(
            o,
            lse if rows.sink is None or alone is None else torch.logaddexp(lse, rows.sink),
            do.to(dtype).reshape(*flat, do.shape[-1]),
            torch.zeros_like(lse) if dlse is None else dlse.to(dtype).reshape(flat),
            alone,
        )
        # of no query there is nothing to keep apart
        packed_heads = self.design.heads == "packed" or not q.shape[1]
        dq, dk, dv, *da = self._stored(
            self.rows(rows, given) if packed_heads else self._heads(rows, given, segment)
        )
        sums = [self.arithmetic.row_sum(x.reshape(q.shape[:2])) for x in da]
        return dq.view(q.shape), dk, dv, *(self.arithmetic.store("dsink", x) for x in sums)

    def _heads(self, rows: PackedRows, given: Given, segment: Segment) -> Gradients:
        """Head by head; each one's gradients are stored before they are summed."""
        (H, s_q, _), h_kv = segment.q.shape, len(segment.k)
        heads = [slice(g * s_q, (g + 1) * s_q) for g in range(H // h_kv)]
        found = [self._stored(self.rows(rows.some(one), given.rows(one))) for one in heads]
        dq, dk, dv, *da = zip(*found, strict=True)
        rest = (torch.cat(x, 1) for x in da)
        return torch.cat(dq, 1), torch.stack(dk).sum(0), torch.stack(dv).sum(0), *rest

    def _stored(self, found: Gradients) -> Gradients:
        dq, dk, dv, *da = found
        store = self.arithmetic.store
        return store("dq", dq), store("dk", dk), store("dv", dv), *da

    def rows(self, rows: PackedRows, given: Given) -> Gradients:
        """The same of packed rows, block by block."""
        c = 1.0
        if self.design.scale == "q":
            c, scaled = rows.scale, self.arithmetic.store("q_scaled", rows.q * rows.scale)
            rows = replace(rows, q=scaled, scale=1.0)
        dq, dk, dv = torch.zeros_like(rows.q), torch.zeros_like(rows.k), torch.zeros_like(rows.v)
        delta, stages = self.stages.delta(self, given), self.stages
        given = replace(given, do=self.arithmetic.store("dPV", given.do))
        made = self._blocks(rows, given, delta)
        if made and self.design.maximum == "differentiated":
            through_maximum(self, made, given)
        if made and self.design.maximum == "summed":
            of_sink = 0.0 if rows.sink is None else stages.dsink(self, rows.sink, delta, given)
            through_summed_maximum(self, made, given.dlse - of_sink)
        for one in map(self._scaled, made):
            keys = slice(*one.span)
            dS = self.arithmetic.store("dS", one.dS)
            dk[:, keys] = stages.dk(self, dS, one.rows)
            dv[:, keys] = stages.dv(self, one.P, given)
            for product in self._dq_products(one, dS):
                dq = self.arithmetic.store("dq_sum", dq + product)
        if c != 1.0:
            dq = self.arithmetic.store("dq_scaled", dq) * c
        if rows.sink is None:
            return dq, dk, dv
        return dq, dk, dv, stages.dsink(self, rows.sink, delta, given)

    def _blocks(self, rows: PackedRows, given: Given, delta: Tensor) -> list[BlockGradient]:
        """In reading order; all at once where nothing depends on where blocks end but the sums of
        dq: block by block, 16 keys at a time, they took two thirds of the time of smoke.
        """
        spans = [*self.design.blocks((0, rows.k.shape[1]))]
        if spans and self.stages is BACKWARD and self.design.maximum != "differentiated":
            spans = [(0, rows.k.shape[1])]
        return [self._block(rows, given, delta, span) for span in spans]

    def _dq_products(self, one: BlockGradient, dS: Tensor) -> Iterator[Tensor]:
        """c dS K of every block of those made, in reading order; several in one product."""
        block, count = self.design.block, dS.shape[-1] // self.design.block
        several = count if count * dS[..., 0].numel() * one.rows.k.shape[-1] <= TOGETHER else 0
        found = list[Tensor]()
        if several > 1:
            first = slice(several * block)
            parts = dS[..., first].unflatten(-1, (-1, block)).transpose(1, 2).flatten(0, 1)
            k = one.rows.k[:, first].unflatten(1, (-1, block)).flatten(0, 1)
            made = self.stages.dq(self, parts, replace(one.rows, k=k))
            found = [*made.unflatten(0, (-1, several)).unbind(1)]
        for at in range(len(found) * block, dS.shape[-1], block):
            k = one.rows.k[:, at : at + block]
            rest = replace(one.rows, k=k)
            found.append(self.stages.dq(self, dS[..., at : at + block], rest))
        yield from reversed(found) if self.design.direction == "backward" else found

    def _scaled(self, one: BlockGradient) -> BlockGradient:
        """Who scales the scores scales their gradient too, before it is stored: in fp16 a scale of
        1/4 takes two bits more of what is subnormal. cuDNN's gradients on an H100 had 2.4 times the
        tolerance of kernels that scale dq and dk alone.
        """
        if self.design.scale != "scores":
            return one
        dS = self.arithmetic.store("dS_unscaled", one.dS) * one.rows.scale
        return replace(one, dS=dS, rows=replace(one.rows, scale=1.0))

    def _block(self, rows: PackedRows, given: Given, delta: Tensor, span: Span) -> BlockGradient:
        keys, stages = slice(*span), self.stages
        block = replace(rows, k=rows.k[:, keys], v=rows.v[:, keys], visible=rows.visible[..., keys])
        P = stages.weights(self, block, given)
        dP = self.arithmetic.store("dP", self.arithmetic.dot(given.do, block.v.mT))
        if given.alone is None:
            dS = stages.d_scores(self, P, dP, delta, given.dlse)
        else:
            of_keys = stages.weights(self, block, replace(given, lse=given.alone))
            dS = stages.d_scores(self, P, dP, delta, torch.zeros_like(delta))
            dS = dS + of_keys * given.dlse[..., None]
        return BlockGradient(span, block, P, dP, dS)
