"""A conforming attention kernel in torch, every part replaceable, forward and backward.

Its functions have the signatures of the operators `mla_decode`, `attention` and `merge_state`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.budgets.attention.contract import AttentionContract, attention_contract
from kdaverify.budgets.formats import format_of
from kdaverify.budgets.sampled import reference_kernels
from oracles.attention.backward import BACKWARD, AttentionBackward, AttentionBackwardStages
from oracles.attention.design import OnlineDesign
from oracles.attention.pipeline import STAGES, AttentionPipeline, AttentionStages, Partial, at_once
from oracles.attention.segment import Segment

Outputs = tuple[Tensor, Tensor]
EVERY: Final = ("fp32", "bf16", "fp16")
"""The formats it takes."""
PLAIN: Final = OnlineDesign(block=16)
"""Of small blocks: tails and fully masked blocks then occur in small problems."""


@dataclass(frozen=True)
class Paged:
    """The cache of a decode call.

    Args:
        cache: [pages, page, h_kv, d_k]; table: int32 [B, max_pages]; lengths: [B].
    """

    cache: Tensor
    table: Tensor
    lengths: list[int]


@dataclass(frozen=True)
class KernelRequest:
    """One request of a call, as the kernel's inner loop gets it.

    Args:
        index, count: its number, and how many there are.
        q: [H, s_q, d_k]; k: [h_kv, s_k, d_k]; v: [h_kv, s_k, d_v].
        packed: whether the call has offsets.
        sink: [H], or None.
        beyond: trailing keys that are nobody's, of a tile that ends past the request.
    """

    index: int
    count: int
    q: Tensor
    k: Tensor
    v: Tensor
    scale: float
    causal: bool
    packed: bool = False
    sink: Tensor | None = None
    beyond: int = 0

    @property
    def s_q(self) -> int:
        return self.q.shape[1]

    @property
    def s_k(self) -> int:
        return self.k.shape[1] - self.beyond

    @property
    def empty_rows(self) -> int:
        """Leading queries that see no key."""
        return (
            min(self.s_q, max(0, self.s_q - self.s_k)) if self.causal else self.s_q * (not self.s_k)
        )


def bottom_right(request: KernelRequest) -> Tensor:
    """[s_q, keys] which keys each query sees."""
    i, j = torch.arange(request.s_q)[:, None], torch.arange(request.k.shape[1])
    behind = (j > i + request.s_k - request.s_q) & request.causal
    return ~behind & (j < request.s_k)


def gathered(paged: Paged, request: int) -> Tensor:
    """[s_k, h_kv, d_k] the tokens of a request: j in slot j % page of page table[j // page]."""
    page, length = paged.cache.shape[1], paged.lengths[request]
    token = torch.arange(length)
    return paged.cache[paged.table[request, token // page].long(), token % page]


def same(request: KernelRequest) -> KernelRequest:
    return request


def as_returned(_: KernelRequest, o: Tensor, lse: Tensor) -> Outputs:
    return o, lse


@dataclass(frozen=True)
class AttentionPatch:
    """What is replaced; by default nothing.

    Args:
        design: of the forward and of the backward.
        tile: keys read at once in `attention`: a request's last tile may hold rows behind it.
        lse_includes_sink: what LSE is returned as.
        stages, backward: of the pipeline.
        gather: tokens of a request from the cache.
        visible, visible_backward: the mask of a request; the same in both passes by default.
        request: a request as the inner loop gets it; backward_request: in the backward.
        returned: (request, o, lse) -> (o, lse) of it.
        gradients: (request, do, gradients) -> gradients of it.
        decode, attention, merge: (right function, arguments) -> what the whole call returns.
    """

    design: OnlineDesign = PLAIN
    tile: int = 1
    lse_includes_sink: bool = False
    stages: AttentionStages = STAGES
    backward: AttentionBackwardStages = BACKWARD
    gather: Callable[[Paged, int], Tensor] = gathered
    visible: Callable[[KernelRequest], Tensor] = bottom_right
    visible_backward: Callable[[KernelRequest], Tensor] | None = None
    request: Callable[[KernelRequest], KernelRequest] = same
    backward_request: Callable[[KernelRequest], KernelRequest] = same
    returned: Callable[[KernelRequest, Tensor, Tensor], Outputs] = as_returned
    gradients: Callable[[KernelRequest, Tensor, Sequence[Tensor]], Sequence[Tensor]] | None = None
    decode: Callable[[Callable[..., Any], dict[str, Any]], Any] | None = None
    attention: Callable[[Callable[..., Any], dict[str, Any]], Any] | None = None
    merge: Callable[[Callable[..., Any], dict[str, Any]], Any] | None = None


@dataclass(frozen=True)
class AttentionKernel:
    """The kernel under a patch."""

    patch: AttentionPatch = field(default_factory=AttentionPatch)

    def mla_decode(
        self,
        q: Tensor,
        cache: Tensor,
        block_table: Tensor,
        cache_seqlens: Tensor,
        *,
        d_v: int,
        softmax_scale: float | None = None,
        causal: bool = False,
        sink: Tensor | None = None,
    ) -> Outputs:
        """q [B, s_q, H, d_k] -> o [B, s_q, H, d_v], lse [B, H, s_q]; V: first d_v columns of K."""
        given: dict[str, Any] = {
            "q": q,
            "cache": cache,
            "block_table": block_table,
            "cache_seqlens": cache_seqlens,
            "d_v": d_v,
            "softmax_scale": softmax_scale,
            "causal": causal,
            "sink": sink,
        }
        if self.patch.decode is None:
            return self._decode(**given)
        return self.patch.decode(self._decode, given)

    def _decode(
        self,
        q: Tensor,
        cache: Tensor,
        block_table: Tensor,
        cache_seqlens: Tensor,
        *,
        d_v: int,
        softmax_scale: float | None,
        causal: bool,
        sink: Tensor | None = None,
    ) -> Outputs:
        B, _, _, d_k = q.shape
        paged = Paged(cache, block_table, [int(n) for n in cache_seqlens])
        scale = d_k**-0.5 if softmax_scale is None else float(softmax_scale)
        found = list[Outputs]()
        for b in range(B):
            k = self.patch.gather(paged, b).transpose(0, 1)
            request = KernelRequest(
                b, B, q[b].transpose(0, 1), k, k[..., :d_v], scale, bool(causal), sink=sink
            )
            found.append(self.forward(self.patch.request(request)))
        o, lse = zip(*found, strict=True)
        return torch.stack(o).transpose(1, 2).contiguous().to(q.dtype), torch.stack(lse).float()

    def attention(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        cu_seqlens_q: Tensor | None = None,
        cu_seqlens_k: Tensor | None = None,
        softmax_scale: float | None = None,
        causal: bool = False,
        sink: Tensor | None = None,
    ) -> Outputs:
        """q [B, s_q, H, d_k], k, v [B, s_k, h_kv, .] -> o [B, s_q, H, d_v], lse [B, H, s_q]; packed
        q [T, H, d_k] -> o [T, H, d_v], lse [H, T].
        """
        given: dict[str, Any] = {
            "q": q,
            "k": k,
            "v": v,
            "cu_seqlens_q": cu_seqlens_q,
            "cu_seqlens_k": cu_seqlens_k,
            "softmax_scale": softmax_scale,
            "causal": causal,
            "sink": sink,
        }
        if self.patch.attention is None:
            return self._attention(**given)
        return self.patch.attention(self._attention, given)

    def _attention(self, q: Tensor, k: Tensor, v: Tensor, **how: Any) -> Outputs:
        scale = how["softmax_scale"]
        spans = _spans(q, k, how["cu_seqlens_q"], how["cu_seqlens_k"])
        number = q.shape[-1] ** -0.5 if scale is None else float(scale)
        run = _Run(self, spans, number, bool(how["causal"]), how["cu_seqlens_q"] is not None)
        found: Any = _Differentiable.apply(run, q, k, v, how.get("sink"))
        return found

    def merge_state(self, o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> Outputs:
        """Two states as one: o [T, H, d_v], lse [H, T]."""
        given = {"o_a": o_a, "lse_a": lse_a, "o_b": o_b, "lse_b": lse_b}
        return merged(**given) if self.patch.merge is None else self.patch.merge(merged, given)

    def contract(self, dtype: torch.dtype) -> AttentionContract:
        return attention_contract(f"online64-{format_of(dtype).name}")

    def forward(self, request: KernelRequest) -> Outputs:
        """o [H, s_q, d_v] and lse [H, s_q] of one request."""
        declared = self.contract(request.q.dtype)
        arithmetic = reference_kernels(declared)["library order"]
        run = AttentionPipeline(self.patch.design, arithmetic, self.patch.stages)
        segment = self._segment(request, self.patch.visible(request))
        return self.patch.returned(request, *run(segment, declared.accumulate.dtype))

    def backward(
        self, request: KernelRequest, stored: Outputs, loss: tuple[Tensor, Tensor | None]
    ) -> Sequence[Tensor]:
        """dq, dk, dv of one request, and dsink of its sink."""
        declared, patch = self.contract(request.q.dtype), self.patch
        arithmetic = reference_kernels(declared)["library order"]
        there = patch.backward_request(request)
        visible = (patch.visible_backward or patch.visible)(there)
        segment = self._segment(there, visible)
        run = AttentionBackward(patch.design, arithmetic, patch.backward)
        found = run(segment, stored, loss, declared.accumulate.dtype)
        return found if patch.gradients is None else patch.gradients(there, loss[0], found)

    def _segment(self, request: KernelRequest, visible: Tensor) -> Segment:
        r = request
        return Segment(r.q, r.k, r.v, r.scale, visible, r.sink, self.patch.lse_includes_sink)


def merged(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> Outputs:
    """The merge of mla.md 1.4 in fp32. LSE is [H, T]: where its axes were recognised by their
    sizes, this kernel was wrong for T = H.
    """
    a, b = (Partial(o.float(), lse.mT.float()) for o, lse in ((o_a, lse_a), (o_b, lse_b)))
    found = at_once(AttentionPipeline(), [a, b])
    return found.o.to(o_a.dtype), found.lse.mT.contiguous()


Span = tuple[slice, slice, int]
"""Rows of q, rows of k and v, and the entry of the batch."""


def _spans(q: Tensor, k: Tensor, cu_q: Tensor | None, cu_k: Tensor | None) -> list[Span]:
    if cu_q is None:
        return [(slice(0, q.shape[1]), slice(0, k.shape[1]), b) for b in range(len(q))]
    ends_q, ends_k = [int(n) for n in cu_q], [int(n) for n in (cu_q if cu_k is None else cu_k)]
    return [
        (slice(ends_q[n], ends_q[n + 1]), slice(ends_k[n], ends_k[n + 1]), 0)
        for n in range(len(ends_q) - 1)
    ]


@dataclass(frozen=True)
class _Run:
    """One call of `attention`, cut into requests."""

    kernel: AttentionKernel
    spans: list[Span]
    scale: float
    causal: bool
    packed: bool

    def requests(
        self, q: Tensor, k: Tensor, v: Tensor, sink: Tensor | None, *, tile: int = 1
    ) -> list[KernelRequest]:
        found = list[KernelRequest]()
        for n, (rows, keys, b) in enumerate(self.spans):
            own = keys.stop - keys.start
            read = slice(keys.start, min(keys.start - (-own // tile) * tile, k.shape[1]))
            of_q, of_k, of_v = (
                x[b, at].transpose(0, 1) for x, at in ((q, rows), (k, read), (v, read))
            )
            request = KernelRequest(
                n, len(self.spans), of_q, of_k, of_v, self.scale, self.causal, self.packed, sink,
                max(0, of_k.shape[1] - own),
            )  # fmt: skip
            found.append(self.kernel.patch.request(request))
        return found


class _Differentiable(torch.autograd.Function):
    """`attention` with its own backward."""

    @staticmethod
    def forward(ctx: Any, run: _Run, *tensors: Any) -> Outputs:
        q, k, v, sink = tensors
        flat = q.ndim == 3
        q4, k4, v4 = ((x[None] if flat else x) for x in (q, k, v))
        o = q4.new_zeros(*q4.shape[:3], v.shape[-1])
        lse = torch.full((len(q4), q4.shape[2], q4.shape[1]), -torch.inf)
        lse = lse.double() if q.dtype is torch.float64 else lse
        ctx.run, ctx.flat, stored = run, flat, []
        requests = run.requests(q4, k4, v4, sink, tile=run.kernel.patch.tile)
        for (rows, _, b), request in zip(run.spans, requests, strict=True):
            found = run.kernel.forward(request)
            stored.append(found)
            o[b, rows], lse[b, :, rows] = (
                found[0].transpose(0, 1).to(o.dtype),
                found[1].to(lse.dtype),
            )
        ctx.stored = stored
        ctx.save_for_backward(q4, k4, v4, sink)
        return (o[0], lse[0]) if flat else (o, lse)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        do, dlse = ((g[None] if ctx.flat and g is not None else g) for g in grads)
        q, k, v, sink = ctx.saved_tensors
        dq, dk, dv = (torch.zeros_like(x) for x in (q, k, v))
        dsink = None if sink is None else torch.zeros_like(sink)
        run = ctx.run
        work = zip(run.spans, run.requests(q, k, v, sink), ctx.stored, strict=True)
        for (rows, keys, b), request, stored in work:
            loss_o = torch.zeros_like(stored[0]) if do is None else do[b, rows].transpose(0, 1)
            loss_lse = None if dlse is None else dlse[b, :, rows]
            found = [*run.kernel.backward(request, stored, (loss_o, loss_lse))]
            if dsink is not None:
                dsink += found.pop()
            for whole, at, part in zip((dq, dk, dv), (rows, keys, keys), found, strict=True):
                # a patch may have left out the oldest keys: those have no gradient
                there = whole[b, at]
                there[len(there) - part.shape[1] :] = part.transpose(0, 1).to(whole.dtype)
        found = (dq, dk, dv)
        return None, *((x[0] for x in found) if ctx.flat else found), dsink


def patched(**parts: Any) -> AttentionPatch:
    """A patch of stages of the pipeline by their names, and of the other parts by theirs."""
    stages = {n: parts.pop(n) for n in list(parts) if n in STAGE_NAMES}
    made = AttentionPatch(**parts)
    return replace(made, stages=replace(made.stages, **stages)) if stages else made


STAGE_NAMES: Final = frozenset(AttentionStages.__dataclass_fields__)
