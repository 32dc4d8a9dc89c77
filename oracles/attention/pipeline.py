"""Softmax attention as kernels compute it: blocks of keys, a running maximum, splits and their
combination. One pipeline under an `Arithmetic`; every stage is replaceable.

Math: mla.md 1.2 and 1.4. Query heads that share a KV head are packed into the rows of one tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from oracles.arithmetic import NATIVE, Arithmetic
from oracles.attention.design import OnlineDesign, Span
from oracles.attention.segment import Segment


@dataclass(frozen=True)
class Partial:
    """The statistics of a split: o [h_kv, R, d_v], its rows normalised; natural lse [h_kv, R]."""

    o: Tensor
    lse: Tensor


@dataclass(frozen=True)
class Running:
    """What a split carries from block to block.

    Args:
        m: [h_kv, R] the maximum of the scores, unscaled unless the design scales them.
        l: [h_kv, R] row sum.
        acc: [h_kv, R, d_v] sum of P V.
    """

    m: Tensor
    l: Tensor  # noqa: E741 # the literature's letter
    acc: Tensor


@dataclass(frozen=True)
class PackedRows:
    """A segment with packed heads: q [h_kv, R, d_k], k, v [h_kv, s_k, .], visible [.., R, s_k].

    Args:
        sink: [h_kv, R] that of every row, or None; of a split, in units of its maximum.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    visible: Tensor
    scale: float
    sink: Tensor | None = None

    def some(self, rows: slice) -> PackedRows:
        """Some of the rows, with every key."""
        sink = None if self.sink is None else self.sink[:, rows]
        return replace(self, q=self.q[:, rows], visible=self.visible[..., rows, :], sink=sink)

    def state(self) -> Running:
        shape = self.q.shape[:2]
        zero = self.q.new_zeros(shape)
        acc = self.q.new_zeros(*shape, self.v.shape[-1])
        if self.sink is not None:
            return Running(self.sink, torch.isfinite(self.sink).to(zero.dtype), acc)
        return Running(torch.full_like(zero, -torch.inf), zero, acc)


def packed(segment: Segment, dtype: torch.dtype) -> PackedRows:
    """The segment in the working type: row g s_q + i of a KV head is query i of its head g."""
    h_kv, group = len(segment.k), len(segment.q) // max(1, len(segment.k))
    q = segment.q.to(dtype).reshape(h_kv, group * segment.q.shape[1], segment.q.shape[2])
    visible = segment.visible.repeat(*[1] * (segment.visible.ndim - 2), group, 1)
    k, v, sink = segment.k.to(dtype), segment.v.to(dtype), segment.sink
    if sink is not None:
        sink = sink.to(dtype).repeat_interleave(segment.q.shape[1]).view(q.shape[:2])
    return PackedRows(q, k, v, visible, float(segment.scale), sink)


# --- the stages ---------------------------------------------------------------------------------


def scores(run: AttentionPipeline, q: Tensor, k: Tensor) -> Tensor:
    """S = q K^T, times the scale where the design applies it here."""
    S = run.store("product", run.arithmetic.dot(q, k.mT))
    return run.store("S", S * run.score_scale if run.score_scale != 1 else S)


def mask(_: AttentionPipeline, S: Tensor, visible: Tensor) -> Tensor:
    """Scores of keys that a row does not see are -inf."""
    return S.masked_fill(~visible, -torch.inf)


def maximum(run: AttentionPipeline, m: Tensor, S: Tensor) -> Tensor:
    """The running maximum; a lazy kernel keeps the old one until it is exceeded by enough."""
    new = torch.maximum(m, S.amax(-1))
    if run.design.rescale != "lazy":
        return new
    rise = (new - m) * run.exponent_scale
    return torch.where(rise > run.design.lazy * LN2 / run.design.log_base, new, m)


LN2 = 0.6931471805599453


def power(run: AttentionPipeline, S: Tensor, m: Tensor) -> Tensor:
    """base^(scale (S - m)); 0 where S is -inf, whatever m is."""
    f, work = run.exponent_scale, S.dtype
    safe = torch.where(m == -torch.inf, torch.zeros_like(m), m)
    if run.design.fused:
        offset = run.store("offset", safe * f)
        exponent = (S.double() * f - offset.double()).to(work)
    else:
        exponent = run.store("difference", S - safe) * f
    return raised(run, exponent)


def raised(run: AttentionPipeline, exponent: Tensor) -> Tensor:
    """The base to a power."""
    exponent = run.store("exponent", exponent)
    return run.store(
        "exponential",
        torch.exp2(exponent) if run.design.base == "2" else run.arithmetic.exp(exponent),
    )


def weights(run: AttentionPipeline, S: Tensor, m: Tensor) -> Tensor:
    """P = base^(scale (S - m)) [h_kv, R, n], before it is stored."""
    return power(run, S, m[..., None])


def rescale(run: AttentionPipeline, old: Tensor, new: Tensor) -> Tensor:
    """The factor of what was summed relative to the old maximum; 1 where nothing was."""
    return torch.where(old == new, torch.ones_like(old), power(run, old, new))


def row_sum(run: AttentionPipeline, P: Tensor, stored: Tensor) -> Tensor:
    """Of P as computed, or as stored."""
    return run.arithmetic.row_sum(P if run.design.row_sum == "unrounded" else stored)


def product(run: AttentionPipeline, P: Tensor, v: Tensor, visible: Tensor) -> Tensor:
    """P V over the keys of a block; what a masked key holds does not matter, NaN included."""
    lost = ~torch.isfinite(v)
    if not bool(lost.any()):
        return run.arithmetic.dot(P, v)
    found = run.arithmetic.dot(P, v.masked_fill(lost, 0.0))
    seen = visible.to(v.dtype) @ lost.to(v.dtype) > 0
    return found.masked_fill(seen, torch.nan)


def accumulate(
    run: AttentionPipeline, state: Running, S: Tensor, v: Tensor, visible: Tensor
) -> Running:
    """One block: the online softmax's update."""
    m, stages = run.stages.maximum(run, state.m, S), run.stages
    alpha = run.store("alpha", stages.rescale(run, state.m, m))
    own = S.amax(-1) if run.design.relative_to == "block" else m
    P = stages.weights(run, S, own)
    stored = run.store("P", P)
    beta: Any = 1.0 if own is m else stages.rescale(run, own, m)
    l = alpha * state.l + beta * stages.row_sum(run, P, stored)  # noqa: E741
    made = run.block_product(stored, v, visible)
    acc = alpha[..., None] * state.acc + (made if own is m else beta[..., None] * made)
    return Running(m, run.store("l", l), run.store("accumulator", acc))


def divided(run: AttentionPipeline, x: Tensor, l: Tensor) -> Tensor:  # noqa: E741
    """The rows of x over their sums."""
    if run.design.division != "reciprocal":
        return x / l[..., None]
    return x * run.store("reciprocal", 1 / l)[..., None]


def lse_in_base(run: AttentionPipeline, m: Tensor, l: Tensor) -> Tensor:  # noqa: E741
    """LSE to the base of the exponential."""
    log = torch.log2(l) if run.design.base == "2" else torch.log(l)
    return run.store("lse_base", log + m * run.exponent_scale)


def finish(run: AttentionPipeline, state: Running) -> Partial:
    """O / l and m + ln l; the identity (0, -inf) of every merge where no key was seen."""
    none = state.l == 0
    l = torch.where(none, torch.ones_like(state.l), state.l)  # noqa: E741
    in_base = lse_in_base(run, state.m, l)
    lse = (in_base * run.design.log_base).masked_fill(none, -torch.inf)
    return Partial(divided(run, state.acc, l), lse)


def combine(run: AttentionPipeline, parts: list[Partial]) -> Partial:
    """L = ln sum exp(lse_s), O = sum exp(lse_s - L) o_s; -inf and 0 where every part is empty."""
    merges = {"at once": at_once, "in order": in_order, "tree": tree}
    if run.design.merge == "reversed":
        return in_order(run, parts[::-1])
    return merges[run.design.merge](run, parts)


def at_once(run: AttentionPipeline, parts: list[Partial]) -> Partial:
    """All partials by one maximum."""
    lse, o = torch.stack([p.lse for p in parts]), torch.stack([p.o for p in parts])
    top = lse.amax(0)
    safe = torch.where(top == -torch.inf, torch.zeros_like(top), top)
    w = run.store("merge_weight", torch.exp(lse - safe))
    total = w.sum(0)
    one = torch.where(total == 0, torch.ones_like(total), total)
    L = (safe + torch.log(one)).masked_fill(total == 0, -torch.inf)
    if run.design.division == "lse":
        share = torch.exp(lse - torch.where(total == 0, torch.zeros_like(L), L))
    else:
        share = w / one
    # a part of weight 0 contributes nothing, whatever it holds
    terms = torch.where(w[..., None] == 0, torch.zeros_like(o), share[..., None] * o)
    return Partial(run.store("accumulator", terms.sum(0)), L)


def in_order(run: AttentionPipeline, parts: list[Partial]) -> Partial:
    """One partial after another."""
    found = parts[0]
    for part in parts[1:]:
        found = at_once(run, [found, part])
    return found


def tree(run: AttentionPipeline, parts: list[Partial]) -> Partial:
    """Pairs, then pairs of pairs."""
    while len(parts) > 1:
        parts = [at_once(run, parts[i : i + 2]) for i in range(0, len(parts), 2)]
    return parts[0]


def begin(run: AttentionPipeline, rows: PackedRows, number: int) -> PackedRows:
    """The rows of a split: the first one begins with the sink where the design has it there."""
    if rows.sink is None or run.design.sink == "end" or number:
        return replace(rows, sink=None)
    return replace(rows, sink=rows.sink / (run.exponent_scale * run.design.log_base))


def sink(run: AttentionPipeline, whole: Partial, a: Tensor, *, counted: bool) -> Partial:
    """o sigma(lse - a), and LSE with the sink where it is returned so."""
    gap = torch.where(whole.lse == -torch.inf, torch.zeros_like(a), a - whole.lse)
    factor = run.store("sink_factor", 1 / (1 + run.arithmetic.exp(gap)))
    o = run.store("accumulator", factor[..., None] * whole.o)
    return Partial(o, torch.logaddexp(whole.lse, a) if counted else whole.lse)


def split(run: AttentionPipeline, rows: PackedRows, span: Span) -> Partial:
    """The partial of some of the keys, block by block."""
    state, stages = rows.state(), run.stages
    if run.design.rescale == "once" or run.design.normalise_first:
        state = final_maximum(run, rows, span, state)
    for first, end in run.design.blocks(span):
        visible = rows.visible[..., first:end]
        S = stages.mask(run, stages.scores(run, rows.q, rows.k[:, first:end]), visible)
        state = stages.accumulate(run, state, S, rows.v[:, first:end], visible)
    return stages.finish(run, state)


def final_maximum(run: AttentionPipeline, rows: PackedRows, span: Span, state: Running) -> Running:
    """A first pass, for kernels that have all scores before they need one exponential."""
    for first, end in run.design.blocks(span):
        scores = run.stages.scores(run, rows.q, rows.k[:, first:end])
        S = run.stages.mask(run, scores, rows.visible[..., first:end])
        state = replace(state, m=torch.maximum(state.m, S.amax(-1)))
    if rows.sink is None:
        return state
    return replace(state, l=state.l * run.stages.rescale(run, rows.sink, state.m))


def normalised(run: AttentionPipeline, rows: PackedRows, span: Span) -> Partial:
    """Softmax first, stored, then its product with V: the unfused form."""
    first, end = span
    visible, stages = rows.visible[..., first:end], run.stages
    if first == end:
        return stages.finish(run, rows.state())
    S = stages.mask(run, stages.scores(run, rows.q, rows.k[:, first:end]), visible)
    m = S.amax(-1) if rows.sink is None else torch.maximum(rows.sink, S.amax(-1))
    P = stages.weights(run, S, m)
    l = run.arithmetic.row_sum(P)  # noqa: E741
    if rows.sink is not None:
        l = l + rows.state().l * stages.rescale(run, rows.sink, m)  # noqa: E741
    l = run.store("l", l)  # noqa: E741
    one = torch.where(l == 0, torch.ones_like(l), l)
    if run.design.division == "lse":
        level = torch.where(l == 0, torch.zeros_like(l), lse_in_base(run, m, one))
        shares = raised(run, S * run.exponent_scale - level[..., None])
    else:
        shares = divided(run, P, one)
    stored = run.store("P", shares)
    o = run.store("accumulator", run.block_product(stored, rows.v[:, first:end], visible))
    return replace(stages.finish(run, Running(m, l, o)), o=o)


@dataclass(frozen=True)
class AttentionStages:
    """Every stage, in the order of the pipeline; a fault replaces one."""

    scores: Callable[[AttentionPipeline, Tensor, Tensor], Tensor] = scores
    mask: Callable[[AttentionPipeline, Tensor, Tensor], Tensor] = mask
    maximum: Callable[[AttentionPipeline, Tensor, Tensor], Tensor] = maximum
    weights: Callable[[AttentionPipeline, Tensor, Tensor], Tensor] = weights
    rescale: Callable[[AttentionPipeline, Tensor, Tensor], Tensor] = rescale
    row_sum: Callable[[AttentionPipeline, Tensor, Tensor], Tensor] = row_sum
    product: Callable[[AttentionPipeline, Tensor, Tensor, Tensor], Tensor] = product
    accumulate: Callable[[AttentionPipeline, Running, Tensor, Tensor, Tensor], Running] = accumulate
    finish: Callable[[AttentionPipeline, Running], Partial] = finish
    begin: Callable[[AttentionPipeline, PackedRows, int], PackedRows] = begin
    split: Callable[[AttentionPipeline, PackedRows, Span], Partial] = split
    combine: Callable[[AttentionPipeline, list[Partial]], Partial] = combine
    sink: Callable[..., Partial] = sink


STAGES = AttentionStages()


@dataclass(frozen=True)
class AttentionPipeline:
    """A design under an arithmetic.

    Args:
        scale: the softmax scale of the segment in hand.
    """

    design: OnlineDesign = OnlineDesign()  # noqa: RUF009 # frozen
    arithmetic: Arithmetic = NATIVE
    stages: AttentionStages = field(default=STAGES)
    scale: float = 1.0

    def store(self, name: str, tensor: Tensor) -> Tensor:
        return self.arithmetic.store(name, tensor)

    def block_product(self, P: Tensor, v: Tensor, visible: Tensor) -> Tensor:
        """P V as stored before it is accumulated: torch stores 16-bit products in 16 bits."""
        return self.store("PV", self.stages.product(self, P, v, visible))

    @property
    def score_scale(self) -> float:
        """What scores are multiplied by; a scale <= 0 would turn the maximum round."""
        return self.scale if self._early == "scores" else 1.0

    @property
    def exponent_scale(self) -> float:
        """What a difference of scores is multiplied by to be an exponent of the base."""
        return (self.scale if self._early == "exponent" else 1.0) / self.design.log_base

    @property
    def _early(self) -> str:
        return self.design.scale if self.scale > 0 or self.design.scale == "q" else "scores"

    def prepared(self, rows: PackedRows) -> PackedRows:
        """q scaled, where the design does that first."""
        if self._early != "q":
            return rows
        return replace(rows, q=self.store("q_scaled", rows.q * self.scale))

    def parts(self, rows: PackedRows) -> list[Partial]:
        """The stored partials of every split."""
        form = normalised if self.design.normalise_first else self.stages.split
        spans = self.design.spans(rows.k.shape[1])
        found = [form(self, self.stages.begin(self, rows, n), span) for n, span in enumerate(spans)]
        if self.design.splits == 1:
            return found
        return [
            Partial(self.store("partial_o", p.o), self.store("partial_lse", p.lse)) for p in found
        ]

    def whole(self, rows: PackedRows, *, counted: bool) -> Partial:
        """Over all keys and the sink, before it is stored.

        Args:
            counted: whether LSE includes the sink.
        """
        if rows.k.shape[1]:
            parts = self.parts(rows)
            found = parts[0] if self.design.splits == 1 else self.stages.combine(self, parts)
        else:
            found = self.stages.finish(self, self.stages.begin(self, rows, 0).state())
        if rows.sink is None:
            return found
        if self.design.sink == "end":
            return self.stages.sink(self, found, rows.sink, counted=counted)
        # LSE of the keys alone has statistics of its own
        alone = found if counted else self.whole(replace(rows, sink=None), counted=False)
        return replace(found, lse=alone.lse)

    def __call__(self, segment: Segment, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """o [H, s_q, d_v] and natural lse [H, s_q], as the segment says, in the working type.

        Args:
            dtype: of every tensor between q, k, v and the outputs.
        """
        run = replace(self, scale=float(segment.scale))
        (H, s_q), d_v = segment.q.shape[:2], segment.v.shape[-1]
        rows = run.prepared(packed(segment, dtype))
        whole = run.whole(rows, counted=segment.lse_includes_sink)
        if not rows.k.shape[1]:
            return whole.o.view(H, s_q, d_v), whole.lse.view(H, s_q)
        o, lse = run.store("o", whole.o), run.store("lse", whole.lse)
        return o.view(H, s_q, d_v), lse.view(H, s_q)
