"""Whole layers for tests: a gated delta layer with planted faults, and right ones in conventions of
their own.
"""

from __future__ import annotations

# S is the state of a layer, new at every token.
# pyright: reportConstantRedefinition=false
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

import kdaverify as kv

D, H, K, W = 64, 2, 8, 4
ROOM: Final = 256
BEFORE: Final = "a new cache empties the one before"
UNREAD: Final = "a cache is read where another one is wanted"
ROUNDED: Final = "positions are made in the format of hidden"
TAPS: Final = torch.tensor([0.4, -0.3, 0.5, 0.9])


def weight(name: int, *shape: int) -> Tensor:
    """Numbers of bfloat16, so that every format has the same weights."""
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(name))
    return (drawn / math.sqrt(shape[-1])).bfloat16()


IN, GATES, OUT = weight(1, 3 * H * K, D), weight(2, 2 * H, D), weight(3, D, H * K)


@dataclass
class Cache:
    """Inputs of the convolution, the recurrence, and how many tokens there were."""

    conv: Tensor
    S: Tensor
    seen: Tensor

    @classmethod
    def empty(cls, rows: int, like: Tensor) -> Cache:
        return cls(
            like.new_zeros(rows, W - 1, 3 * H * K),
            like.new_zeros(rows, H, K, K),
            torch.zeros(rows, dtype=torch.int64),
        )


class DeltaLayer:
    """Projections, a short convolution, keys turned by their position, a gated delta rule, out."""

    def __init__(self, fault: str = "") -> None:
        self.fault, self.slot, self.calls = fault, None, 0

    def __call__(
        self,
        hidden: Tensor,
        *,
        cache: Cache | None = None,
        attention_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        use_cache: bool = False,
    ) -> Any:
        if self.fault == "float64 in fp32" and hidden.dtype == torch.float64:
            return self.narrowed(hidden, attention_mask, use_cache=use_cache)
        if cu_seqlens is not None and self.fault != "offsets ignored":
            return self._pack(hidden, cu_seqlens.tolist())
        if self.fault == UNREAD and not use_cache:
            cache = None
        before = self._taken(cache, len(hidden), hidden)
        mask = self._mask(hidden, attention_mask, cache)
        out, after = self._run(hidden, mask, before, prefill=cache is None and use_cache)
        if self.fault == "idle rows lose their window":
            after.conv = after.conv * mask.any(1)[:, None, None]
        if self.fault == "padding has gradients" and attention_mask is not None:
            out = out + (hidden - hidden.detach()).sum()
        if self.fault == "masked form is another" and attention_mask is not None:
            out = 1.01 * out
        if self.fault == "unwritten memory":
            self.calls += 1
            out = out + 1e-6 * self.calls
        return (out, self._left(after)) if use_cache else out

    def narrowed(self, hidden: Tensor, mask: Tensor | None, *, use_cache: bool) -> Any:
        out = self(hidden.float(), attention_mask=mask)
        return (out.double(), {}) if use_cache else out.double()

    def _pack(self, hidden: Tensor, offsets: list[int]) -> Tensor:
        parts, before = list[Tensor](), Cache.empty(1, hidden)
        for first, end in pairwise(offsets):
            rows = hidden[:, first:end]
            if self.fault == "backward drops the first token of a pack":
                rows = torch.cat((rows[:, :1].detach(), rows[:, 1:]), 1)
            mask = torch.ones(1, end - first, dtype=torch.bool)
            out, after = self._run(rows, mask, before, prefill=False)
            parts.append(out)
            before = Cache.empty(1, hidden)
            if self.fault == "short sequences leave their window" and end - first < W - 1:
                before.conv = after.conv
        return torch.cat(parts, 1)

    def _mask(self, hidden: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        ignored = (
            self.fault == "mask ignored"
            or (self.fault == "mask ignored for one row" and len(hidden) == 1)
            or (self.fault == "mask ignored with a cache" and cache is not None)
        )
        given = hidden.new_ones(hidden.shape[:2]) if mask is None or ignored else mask
        return given.bool()

    def _taken(self, cache: Cache | None, rows: int, hidden: Tensor) -> Cache:
        """A copy of the cache, as it comes in."""
        if self.fault == "cache in the layer" and self.slot is not None and cache is not None:
            cache = self.slot
        if cache is None:
            fresh, slot = Cache.empty(rows, hidden), self.slot
            if self.fault == BEFORE and slot is not None:
                self.slot = None
                slot.S, slot.conv, slot.seen = fresh.S, fresh.conv, fresh.seen
            if self.fault == "slot not cleared" and slot is not None and len(slot.S) == rows:
                fresh.S = slot.S.to(hidden.dtype)
            return fresh
        S, conv, seen = cache.S, cache.conv, cache.seen
        if self.fault == "rows longer than the first lose their window where a cache grows":
            grows = int(seen.max()) + hidden.shape[1] > ROOM
            conv = conv * ((seen <= seen[0]) | (not grows))[:, None, None]
        if self.fault == "cache of the neighbour":
            S = S.roll(1, 0)
        if self.fault == "position off by one":
            seen = seen + 1
        if self.fault == "window shifted":
            conv = conv.roll(1, 1)
        return Cache(conv, S, seen)

    def _left(self, after: Cache) -> Cache:
        """The cache as it is handed out."""
        if self.fault == "final state dropped":
            after.S = torch.zeros_like(after.S)
        if self.fault == "state in bf16":
            after.S = after.S.bfloat16().to(after.S.dtype)
        if self.fault == "positions of 8 bits":
            after.seen = after.seen % ROOM
        if self.fault in ("cache in the layer", "slot not cleared", BEFORE):
            self.slot = after
        return after

    def _run(
        self, hidden: Tensor, mask: Tensor, cache: Cache, *, prefill: bool
    ) -> tuple[Tensor, Cache]:
        inputs, gates = hidden @ IN.to(hidden).T, hidden @ GATES.to(hidden).T
        if self.fault == "rows share a mean" and len(hidden) > 1:
            inputs = inputs - 0.1 * inputs.mean(0, keepdim=True)
        conv, S, seen, found = cache.conv, cache.S, cache.seen, list[Tensor]()
        if self.fault == "conv state not carried in decode" and hidden.shape[1] == 1:
            conv = torch.zeros_like(conv)
        for t in range(hidden.shape[1]):
            live = mask[:, t]
            ahead = t + 1 < hidden.shape[1] and self.fault == "reads ahead"
            window = torch.cat((conv, inputs[:, t + ahead, None]), 1)
            q, k, v = _heads(functional.silu((window * TAPS.to(hidden)[:, None]).sum(1)))
            g, b = gates[:, t].chunk(2, -1)
            b = b.sigmoid() / 2 if prefill and self.fault == "prefill is another" else b.sigmoid()
            decayed = torch.exp(-functional.softplus(g) / 2)[..., None, None] * S
            at = seen
            if self.fault == ROUNDED:
                at = seen.to(hidden.dtype)
            k = _turned(k, at)
            read = torch.einsum("bhkv,bhk->bhv", decayed, k)
            new = decayed + torch.einsum("bhk,bhv->bhkv", k, b[..., None] * (v - read))
            found.append(torch.einsum("bhkv,bhk->bhv", new, _turned(q, at)).flatten(1))
            stays = decayed if self.fault == "padding decays" else S
            enters = live | (self.fault == "padding enters the state")
            S = new.where(enters[:, None, None, None], stays)
            conv = window[:, 1:].where(live[:, None, None], conv)
            seen = seen + live
        return torch.stack(found, 1) @ OUT.to(hidden).T, Cache(conv, S, seen)

    def reset(self, cache: Cache) -> None:
        """In place."""
        cache.S, cache.seen = torch.zeros_like(cache.S), torch.zeros_like(cache.seen)
        if self.fault != "reset leaves the convolution":
            cache.conv = torch.zeros_like(cache.conv)

    def reorder(self, cache: Cache, order: Tensor) -> Cache:
        """Returns another."""
        if self.fault == "of two orders the first one counts" and self.slot is cache:
            return cache
        conv = cache.conv if self.fault == "reorder leaves the convolution" else cache.conv[order]
        if self.fault == "of two orders the first one counts":
            self.slot = Cache(conv, cache.S[order], cache.seen[order])
            return self.slot
        return Cache(conv, cache.S[order], cache.seen[order])


def _heads(row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = row.view(len(row), 3, H, K).unbind(1)
    return functional.normalize(q, dim=-1), functional.normalize(k, dim=-1), v


def _turned(x: Tensor, seen: Tensor) -> Tensor:
    """Rotary: pairs of channels by an angle a token."""
    wide = torch.promote_types(x.dtype, torch.float32)
    angle = (0.3 * seen.to(wide))[:, None, None]
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), -1)


FAULTS: Final[Mapping[str, str]] = {
    "conv state not carried in decode": "decode",
    "window shifted": "cut",
    "cache of the neighbour": "cut",
    "final state dropped": "cut",
    "state in bf16": "cut",
    "position off by one": "cut",
    "prefill is another": "cache-wanted",
    UNREAD: "last-call",
    "slot not cleared": "fresh-cache",
    "reset leaves the convolution": "reset-cache",
    "cache in the layer": "copied-cache",
    "reorder leaves the convolution": "reordered-cache",
    BEFORE: "living-caches",
    "of two orders the first one counts": "reordered-twice",
    "positions of 8 bits": "grown-cache",
    "rows longer than the first lose their window where a cache grows": "grown-rows",
    "mask ignored": "left-padding",
    "mask ignored for one row": "left-padding",
    "padding enters the state": "left-padding",
    "mask ignored with a cache": "left-padding-cut",
    "padding decays": "right-padding-decode",
    "masked form is another": "mask-of-ones",
    "padding has gradients": "left-padding-gradient",
    "idle rows lose their window": "idle-rows",
    "offsets ignored": "pack",
    "short sequences leave their window": "pack",
    "backward drops the first token of a pack": "pack-gradient",
    "rows share a mean": "batch",
    "reads ahead": "later-tokens",
    ROUNDED: "late-tokens",
    "unwritten memory": "repeat",
    "float64 in fp32": "float64",
}
"""Each with the law that is about it."""


def attention(
    hidden: Tensor, *, cache: Any, attention_mask: Tensor | None, use_cache: bool
) -> tuple[Tensor, Any]:
    """Softmax attention: its cache grows, is edited in place, and keeps the mask of what it
    holds.
    """
    q, k, v = (x.unflatten(-1, (H, K)) for x in (hidden @ IN.to(hidden).T).chunk(3, -1))
    mask = torch.ones(hidden.shape[:2]) if attention_mask is None else attention_mask
    held = {} if cache is None else cache
    for name, rows in {"k": k, "v": v, "mask": mask.bool()}.items():
        held[name] = torch.cat((held[name], rows), 1) if name in held else rows
    T, S = hidden.shape[1], held["k"].shape[1]
    reach = torch.arange(S) <= torch.arange(S - T, S)[:, None]
    scores = torch.einsum("bthk,bshk->bhts", q, held["k"]) + torch.where(
        reach & held["mask"][:, None, None], 0.0, -1e9
    ).to(hidden)
    read = torch.einsum("bhts,bshk->bthk", scores.softmax(-1), held["v"])
    return read.flatten(2) @ OUT.to(hidden).T, held if use_cache else None


def plain(hidden: Tensor) -> Tensor:
    """Takes nothing but hidden."""
    return torch.cumsum(hidden, 1) / 8


def refusing(hidden: Tensor, *, attention_mask: Tensor | None = None) -> Tensor:
    if attention_mask is not None:
        raise NotImplementedError("no masks; unpad the batch")
    return plain(hidden)


def adapted(layer: Callable[..., Any], name: str, **options: Any) -> Any:
    given: dict[str, Any] = {
        "op": "layer",
        "name": name,
        "widths": D,
        "reference": "fp64",
        **options,
    }
    return kv.kernel(**given)(layer)


def faulty(fault: str, **options: Any) -> Any:
    layer = DeltaLayer(fault)
    if fault == ROUNDED:
        options = {"dtypes": ("fp32", "bf16"), **options}
    return adapted(
        layer, fault or "delta layer", reset=layer.reset, reorder=layer.reorder, **options
    )


def _emptied(cache: dict[str, Tensor]) -> dict[str, Tensor]:
    del cache
    return {}


def _reordered(cache: dict[str, Tensor], order: Tensor) -> dict[str, Tensor]:
    return {name: rows[order] for name, rows in cache.items()}


RIGHT_ONES: Final[Mapping[str, Any]] = {
    "delta": faulty(""),
    "delta in bf16": faulty("", dtypes=("bf16",), longest=33),
    "attention": adapted(
        attention,
        "attention layer",
        dtypes=("fp32", "bf16"),
        reset=_emptied,
        reorder=_reordered,
    ),
    "plain": adapted(plain, "plain layer"),
    "without float64": faulty("", reference="plain", longest=33),
}
