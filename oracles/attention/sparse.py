"""Attention of every query over a list of cache slots of its own, as rows or quantised."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Final, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from oracles.attention.calls import RESULTS, Loss, RequestsCall, RequestSpan, Rounding, axes_of
from oracles.attention.fp8 import dequantised, of_bytes
from oracles.attention.segment import Segment
from oracles.signature import CallSignature, Role, TensorRole

SPARSE_ATTENTION: Final = CallSignature(
    inputs=(
        TensorRole("q", Role.TOKEN, axes_of("B s_q H d_k"), "dq"),
        TensorRole("cache", Role.CACHE, axes_of("pages page h_kv width"), "dcache"),
        TensorRole("indices", Role.INDEX, axes_of("B s_q topk")),
        TensorRole("topk_length", Role.LENGTHS, axes_of("B"), optional=True),
        TensorRole("sink", Role.PARAMETER, axes_of("H"), "dsink", optional=True),
    ),
    outputs=RESULTS,
)


@dataclass(frozen=True)
class SparseCall(RequestsCall):
    """Queries over slots of a paged cache that a list names, one list a query.

    Math: `Segment` over the gathered rows; an index that occurs twice counts twice.

    Args:
        q: [B, s_q, H, d_k]
        cache: [pages, page, h_kv, d_k], or uint8 [pages, page, h_kv, bytes] as in `oracles.
            attention.fp8`; slots that no index names may hold anything.
        indices: [B, s_q, topk] int32, slots page * size + offset; those below 0, or not below the
            number of slots, name nothing.
        topk_length: [B] int32, how many leading entries of the lists of a request count; None: all.
        d_v: columns of a row that are its value.
        softmax_scale: c.
        sink, lse_includes_sink: as of `AttentionCall`.
    """

    op: ClassVar = "sparse_attention"
    signature: ClassVar = SPARSE_ATTENTION

    q: Tensor
    cache: Tensor
    indices: Tensor
    topk_length: Tensor | None = None
    d_v: int = 1  # pyright: ignore[reportIncompatibleMethodOverride]
    softmax_scale: float = 1.0
    causal: bool = False
    sink: Tensor | None = None
    lse_includes_sink: bool = False

    @cached_property
    def requests(self) -> tuple[RequestSpan, ...]:
        """One for every query: each has keys of its own."""
        B, s_q, topk = self.indices.shape
        return tuple(RequestSpan(b, i, 1, 0, topk) for b in range(B) for i in range(s_q))

    @cached_property
    def rows(self) -> Tensor:
        """[slots, h_kv, d_k] The rows of the cache; dequantised ones in float64, exact."""
        slots = self.cache.flatten(0, 1)
        if slots.dtype is not torch.uint8:
            return slots
        return dequantised(of_bytes(slots, self.d_v))

    @cached_property
    def seen(self) -> Tensor:
        """[B, s_q, topk] Entries that name a slot and count."""
        found = (self.indices >= 0) & (self.indices < self.cache[..., 0, 0].numel())
        if self.topk_length is None:
            return found
        place = torch.arange(found.shape[-1], device=found.device)
        return found & (place < self.topk_length[:, None, None])

    @cached_property
    def empty(self) -> Tensor:
        """[B, s_q] Queries whose list names nothing."""
        return ~self.seen.any(-1)

    def segments(self) -> list[Segment]:
        at = self.indices.long().masked_fill(~self.seen, 0)
        found = list[Segment]()
        for span in self.requests:
            b, i = span.entry, span.first
            seen = self.seen[b, i]
            k = self.rows[at[b, i]].masked_fill(~seen[:, None, None], 0.0).transpose(0, 1)
            q = self.q[b, span.rows].transpose(0, 1)
            found.append(self._over(q, k, k[..., : self.d_v], seen[None], self.sink))
        return found

    def stacked(self) -> list[Segment]:
        parts = self.segments()
        q, k, v = (torch.cat([getattr(part, name) for part in parts]) for name in "qkv")
        h_kv = self.cache.shape[2]
        visible = torch.stack([part.visible for part in parts]).repeat_interleave(h_kv, 0)
        sink = None if self.sink is None else self.sink.repeat(len(parts))
        return [self._over(q, k, v, visible, sink)]

    def _over(
        self, q: Tensor, k: Tensor, v: Tensor, visible: Tensor, sink: Tensor | None
    ) -> Segment:
        return Segment(q, k, v, self.softmax_scale, visible, sink, self.lse_includes_sink)

    def joined(self, name: str, parts: Iterable[Tensor]) -> Tensor:
        whole = torch.cat([*parts]).squeeze(1).unflatten(0, (*self.indices.shape[:2], -1))
        return whole.transpose(1, 2) if name == "lse" else whole

    def stacked_losses(self, cotangents: Mapping[str, Tensor]) -> list[Loss]:
        do, dlse = zip(*self.losses(cotangents), strict=True)
        return [(torch.cat(do), None if dlse[0] is None else torch.cat(dlse))]

    def joined_gradients(self, parts: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
        """dq, dcache and dsink: an entry adds its dk, and dv in the first columns, to its slot."""
        dq, dk, dv, *of_sink = (torch.cat(found) for found in zip(*parts, strict=True))
        seen, queries = self.seen.flatten(0, 1), self.q.shape[:2].numel()
        rows = dk + pad(dv, (0, dk.shape[2] - dv.shape[2]))
        of_entries = rows.unflatten(0, (queries, -1)).transpose(1, 2)[seen]
        named = self.indices.flatten(0, 1)[seen].long()
        slots = dk.new_zeros(self.rows.shape).index_add(0, named, of_entries)
        sums = (x.unflatten(0, (queries, -1)).sum(0) for x in of_sink)
        found = self.joined("q", [dq]), slots.view(self.cache.shape), *sums
        return dict(zip(self.signature.gradients, found, strict=False))

    def as_read(self, rows: Rounding, scales: Rounding) -> Self:
        if self.cache.dtype is not torch.uint8:
            return self
        parts = of_bytes(self.cache, self.d_v)
        return replace(self, cache=rows(dequantised(replace(parts, scales=scales(parts.scales)))))
