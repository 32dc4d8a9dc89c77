"""The calls of softmax attention: dense and packed, decode over a paged cache, merge of states.

Every output and gradient is in canonical conventions: LSE natural, [B, H, s_q], and -inf where a
row sees no key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Final, Self

import torch
from torch import Tensor

from oracles.attention.segment import Segment, seen
from oracles.signature import CallSignature, Role, TensorCall, TensorRole

Rounding = Callable[[Tensor], Tensor]
Loss = tuple[Tensor, Tensor | None]
"""do and dlse of a segment."""


def axes_of(letters: str) -> tuple[str, ...]:
    return tuple(letters.split())


RESULTS: Final = (
    TensorRole("o", Role.TOKEN, axes_of("B s_q H d_v"), "do"),
    TensorRole("lse", Role.TOKEN, axes_of("B H s_q"), "dlse"),
)
ATTENTION: Final = CallSignature(
    inputs=(
        TensorRole("q", Role.TOKEN, axes_of("B s_q H d_k"), "dq"),
        TensorRole("k", Role.TOKEN, axes_of("B s_k h_kv d_k"), "dk"),
        TensorRole("v", Role.TOKEN, axes_of("B s_k h_kv d_v"), "dv"),
        TensorRole("cu_seqlens_q", Role.OFFSETS, axes_of("N+1"), optional=True),
        TensorRole("cu_seqlens_k", Role.OFFSETS, axes_of("N+1"), optional=True),
        TensorRole("sink", Role.PARAMETER, axes_of("H"), "dsink", optional=True),
    ),
    outputs=RESULTS,
)
MLA_DECODE: Final = CallSignature(
    inputs=(
        TensorRole("q", Role.TOKEN, axes_of("B s_q H d_k")),
        TensorRole("cache", Role.CACHE, axes_of("pages page h_kv d_k")),
        TensorRole("block_table", Role.INDEX, axes_of("B max_pages")),
        TensorRole("cache_seqlens", Role.LENGTHS, axes_of("B")),
        TensorRole("sink", Role.PARAMETER, axes_of("H"), optional=True),
    ),
    outputs=RESULTS,
)
MERGE_STATE: Final = CallSignature(
    inputs=(
        TensorRole("o_a", Role.TOKEN, axes_of("T H d_v")),
        TensorRole("lse_a", Role.TOKEN, axes_of("H T")),
        TensorRole("o_b", Role.TOKEN, axes_of("T H d_v")),
        TensorRole("lse_b", Role.TOKEN, axes_of("H T")),
    ),
    outputs=(
        TensorRole("o", Role.TOKEN, axes_of("T H d_v")),
        TensorRole("lse", Role.TOKEN, axes_of("H T")),
    ),
)


@dataclass(frozen=True)
class RequestSpan:
    """Where a request lies: rows of queries in a batch entry, and its keys."""

    entry: int
    first: int
    s_q: int
    first_key: int
    s_k: int

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.s_q)

    @property
    def keys(self) -> slice:
        return slice(self.first_key, self.first_key + self.s_k)


class RequestsCall(TensorCall):
    """A call that is a list of requests."""

    q: Tensor
    softmax_scale: float
    causal: bool
    sink: Tensor | None = None
    lse_includes_sink: bool = False

    @cached_property
    def requests(self) -> tuple[RequestSpan, ...]:
        """Where every request lies, in order."""
        raise NotImplementedError

    @property
    def d_v(self) -> int:
        raise NotImplementedError

    def segments(self) -> list[Segment]:
        """One for every request, in order."""
        raise NotImplementedError

    def stacked(self) -> list[Segment]:
        """The same for reference kernels, which take queries that see different keys as heads."""
        return self.segments()

    def losses(self, cotangents: Mapping[str, Tensor]) -> list[Loss]:
        """do [H, s_q, d_v] and dlse [H, s_q] of every request, from those of the call by name.

        A loss that does not use o has zeros for do; one that does not use lse has None for dlse.
        """
        unused = self.q.new_zeros(*self.q.shape[:3], self.d_v, dtype=torch.float64)
        do, dlse = cotangents.get("do", unused), cotangents.get("dlse")
        of_lse = [None] * len(self.requests) if dlse is None else self.of_requests("dlse", dlse)
        return [*zip(self.of_requests("do", do), of_lse, strict=True)]

    def stacked_losses(self, cotangents: Mapping[str, Tensor]) -> list[Loss]:
        """The same of `stacked`."""
        return self.losses(cotangents)

    def joined_gradients(self, parts: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
        """The gradients by name, of dq, dk, dv and, where there is a sink, dsink of a segment."""
        raise NotImplementedError

    def as_read(self, rows: Rounding, scales: Rounding) -> Self:
        """The call with what it dequantises rounded, scales too; itself if nothing is quantised."""
        return self

    def _segment(self, at: RequestSpan, k: Tensor, v: Tensor) -> Segment:
        """Of one request; k, v: [s_k, h_kv, d]."""
        visible = seen(at.s_q, at.s_k, masked=self.causal, device=self.q.device)
        q, k, v = (x.transpose(0, 1) for x in (self.q[at.entry, at.rows], k, v))
        return Segment(q, k, v, self.softmax_scale, visible, self.sink, self.lse_includes_sink)

    def joined(self, name: str, parts: Iterable[Tensor]) -> Tensor:
        """An output of the call, or dq, of one part [H, s_q, ...] a request; 0 elsewhere."""
        B, s_q, H, _ = self.q.shape
        found = [*parts]
        like = found[0] if found else self.q.new_zeros(H, 0, self.d_v, dtype=torch.float64)
        whole = like.new_zeros(B, H, s_q, *like.shape[2:])
        for at, part in zip(self.requests, found, strict=True):
            whole[at.entry, :, at.rows] = part
        return whole if name == "lse" else whole.transpose(1, 2)

    def of_requests(self, name: str, whole: Tensor) -> list[Tensor]:
        """The transpose: what every request has of an output or a cotangent, [H, s_q, ...]."""
        x = whole if name in ("lse", "dlse") else whole.transpose(1, 2)
        return [x[at.entry, :, at.rows] for at in self.requests]

    @cached_property
    def nobody(self) -> Tensor:
        """[B, s_q] Rows that belong to no request."""
        found = torch.ones(self.q.shape[:2], dtype=torch.bool, device=self.q.device)
        for at in self.requests:
            found[at.entry, at.rows] = False
        return found

    @cached_property
    def empty(self) -> Tensor:
        """[B, s_q] Rows of requests that see no key."""
        found = torch.zeros(self.q.shape[:2], dtype=torch.bool, device=self.q.device)
        for at in self.requests:
            lonely = at.s_q if at.s_k == 0 else max(at.s_q - at.s_k, 0) if self.causal else 0
            found[at.entry, at.first : at.first + lonely] = True
        return found

    @cached_property
    def without_lse(self) -> Tensor:
        """[B, H, s_q] Rows whose LSE is that of nothing."""
        found = self.empty[:, None].expand(-1, self.q.shape[2], -1)
        if self.sink is None or not self.lse_includes_sink:
            return found
        return found & torch.isneginf(self.sink)[:, None]


@dataclass(frozen=True)
class AttentionCall(RequestsCall):
    """Attention over dense keys.

    Args:
        q: [B, s_q, H, d_k]; k: [B, s_k, h_kv, d_k]; v: [B, s_k, h_kv, d_v].
        cu_seqlens_q, cu_seqlens_k: [N + 1] offsets of a pack, where B = 1, or None.
        softmax_scale: c.
        causal: bottom-right aligned.
        sink: [H] fp32 logits that join the sum of exponentials without a value, or None.
        lse_includes_sink: whether LSE is that of keys and sink, or of the keys alone.
    """

    op: ClassVar = "attention"
    signature: ClassVar = ATTENTION

    q: Tensor
    k: Tensor
    v: Tensor
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    softmax_scale: float = 1.0
    causal: bool = False
    sink: Tensor | None = None
    lse_includes_sink: bool = False

    @property
    def d_v(self) -> int:
        return self.v.shape[3]

    @property
    def packed(self) -> bool:
        return self.cu_seqlens_q is not None

    @cached_property
    def requests(self) -> tuple[RequestSpan, ...]:
        if self.cu_seqlens_q is None or self.cu_seqlens_k is None:
            B, s_q, s_k = *self.q.shape[:2], self.k.shape[1]
            return tuple(RequestSpan(b, 0, s_q, 0, s_k) for b in range(B))
        spans = zip(
            pairwise(self.cu_seqlens_q.tolist()), pairwise(self.cu_seqlens_k.tolist()), strict=True
        )
        return tuple(RequestSpan(0, a, b - a, c, d - c) for (a, b), (c, d) in spans)

    def segments(self) -> list[Segment]:
        return [
            self._segment(at, self.k[at.entry, at.keys], self.v[at.entry, at.keys])
            for at in self.requests
        ]

    def joined_keys(self, parts: Sequence[Tensor]) -> Tensor:
        """dk or dv of one part [h_kv, s_k, d] a request; 0 in rows of no request."""
        B, s_k, h_kv, _ = self.k.shape
        width = parts[0].shape[-1] if parts else self.d_v
        whole = self.k.new_zeros(B, h_kv, s_k, width, dtype=torch.float64)
        for at, part in zip(self.requests, parts, strict=True):
            whole[at.entry, :, at.keys] = part
        return whole.transpose(1, 2)

    def joined_gradients(self, parts: Sequence[Sequence[Tensor]]) -> dict[str, Tensor]:
        dq, dk, dv = ([part[n] for part in parts] for n in range(3))
        found = {"dq": self.joined("q", dq), "dk": self.joined_keys(dk), "dv": self.joined_keys(dv)}
        if self.sink is None:
            return found
        return {**found, "dsink": torch.stack([part[3] for part in parts]).sum(0)}


@dataclass(frozen=True)
class MlaDecodeCall(RequestsCall):
    """A few queries a request over a paged cache whose first d_v columns are the values.

    Args:
        q: [B, s_q, H, d_k]; cache: [pages, page, h_kv, d_k].
        block_table: [B, max_pages] int32, the physical page of every logical one; entries that no
            token lies in may be anything.
        cache_seqlens: [B] int32, cached tokens; slots past them may hold anything.
        d_v: columns of a row that are its value.
        softmax_scale: c.
        causal: bottom-right aligned.
        sink, lse_includes_sink: as of `AttentionCall`.
    """

    op: ClassVar = "mla_decode"
    signature: ClassVar = MLA_DECODE

    q: Tensor
    cache: Tensor
    block_table: Tensor
    cache_seqlens: Tensor
    d_v: int = 1  # pyright: ignore[reportIncompatibleMethodOverride]
    softmax_scale: float = 1.0
    causal: bool = True
    sink: Tensor | None = None
    lse_includes_sink: bool = False

    @cached_property
    def requests(self) -> tuple[RequestSpan, ...]:
        s_q = self.q.shape[1]
        return tuple(
            RequestSpan(b, 0, s_q, 0, n) for b, n in enumerate(self.cache_seqlens.tolist())
        )

    @cached_property
    def used_slots(self) -> Tensor:
        """[pages, page] Slots that a token of some request lies in."""
        pages, page = self.cache.shape[:2]
        found = torch.zeros(pages, page, dtype=torch.bool, device=self.cache.device)
        for table, at in zip(self.block_table.long(), self.requests, strict=True):
            tokens = torch.arange(at.s_k, device=self.cache.device)
            found[table[tokens // page], tokens % page] = True
        return found

    def gathered(self, request: int) -> Tensor:
        """[s_k, h_kv, d_k] The rows of a request in the order of its tokens, bit for bit."""
        page, s_k = self.cache.shape[1], self.requests[request].s_k
        used = self.block_table[request, : -(-s_k // page)].long()
        return self.cache[used].flatten(0, 1)[:s_k]

    def segments(self) -> list[Segment]:
        rows = [self.gathered(n) for n in range(len(self.requests))]
        return [
            self._segment(at, k, k[..., : self.d_v])
            for at, k in zip(self.requests, rows, strict=True)
        ]


@dataclass(frozen=True)
class MergeCall(TensorCall):
    """Two states of attention over disjoint keys, to be one over both.

    Args:
        o_a, o_b: [T, H, d_v]; lse_a, lse_b: [H, T], -inf for a part without keys.
    """

    op: ClassVar = "merge_state"
    signature: ClassVar = MERGE_STATE

    o_a: Tensor
    lse_a: Tensor
    o_b: Tensor
    lse_b: Tensor

    @property
    def empty(self) -> Tensor:
        """[H, T] Rows where both parts are empty."""
        return torch.isneginf(self.lse_a) & torch.isneginf(self.lse_b)


class _Hidden(torch.autograd.Function):
    """A tensor with some elements set to 0; the incoming gradient is that of the whole tensor.

    A mask makes incoming gradients dense, and 0 where it hides: no view of one, and no NaN in rows
    of no request, reached the backward of a kernel.
    """

    @staticmethod
    def forward(ctx: Any, value: Tensor, hidden: Tensor) -> Tensor:
        del ctx
        return value.masked_fill(hidden, 0.0)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        del ctx
        return grad_outputs[0], None


def own_rows(call: Any, value: Tensor, axis: int = 1) -> Tensor:
    """An output, or the gradient of q, with rows of no request set to 0.

    Args:
        axis: that of the rows, behind that of the batch.
    """
    nobody = call.nobody.to(value.device)
    if not bool(nobody.any()):
        return value
    B, s_q = nobody.shape
    shape = [B, *[1] * (value.ndim - 1)]
    shape[axis] = s_q
    return _Hidden.apply(value, nobody.view(shape))  # pyright: ignore[reportReturnType]
