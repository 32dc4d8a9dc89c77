"""A small layer with a window, a state and caches; faults of rows with few or no tokens, and of
several caches or orders at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.faults.fault import Fault
from kdaverify.faults.layer import EVERY, GATE, INPUT, OUTPUT, WIDTH

TAPS: Final = torch.tensor([0.5, -0.25, 0.75, 1.0])
"""Numbers of bfloat16."""
HELD: Final = len(TAPS) - 1
Cache = tuple[Tensor, Tensor]
"""The last inputs of every row [B, HELD, D], and its state [B, D]."""


def empty(rows: int, like: Tensor) -> Cache:
    return like.new_zeros(rows, HELD, WIDTH), like.new_zeros(rows, WIDTH)


def kept(after: Cache, _before: Cache, _live: Tensor) -> Cache:
    """What a call leaves of a cache.

    Args:
        live: [B, T], whether a row has a token there.
    """
    return after


def of_its_own(after: Cache, _: int) -> Cache:
    """What the sequence behind one of a pack begins with."""
    return empty(1, after[0])


@dataclass(frozen=True)
class Waiting:
    """A cache whose rows are reordered with the next call."""

    cache: Cache
    order: Tensor


def as_it_is(cache: Any) -> Cache:
    """A cache that a call continues from."""
    return cache


def reset(cache: Cache) -> Cache:
    return empty(len(cache[0]), cache[0])


def reorder(cache: Cache, order: Tensor) -> Any:
    return cache[0][order], cache[1][order]


@dataclass(frozen=True)
class CachedLayer:
    """Math: h_t = sum_j w_j x_{t-3+j}; S_t = g_t S_{t-1} + (1 - g_t) W_i h_t, out_t = W_o S_t, g =
    sigmoid(W_g h). A fault replaces what calls and sequences begin with and leave behind.
    """

    begun: Callable[[int, Tensor], Cache] = empty
    taken: Callable[[Any], Cache] = as_it_is
    reordered: Callable[[Any, Tensor], Any] = reorder
    left: Callable[[Cache, Cache, Tensor], Cache] = kept
    following: Callable[[Cache, int], Cache] = of_its_own

    def __call__(
        self,
        hidden: Tensor,
        *,
        cache: Any = None,
        attention_mask: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        use_cache: bool = False,
    ) -> Any:
        if cu_seqlens is not None:
            return self._pack(hidden, cu_seqlens.tolist())
        begun = self.begun if use_cache else empty
        before = begun(len(hidden), hidden) if cache is None else self.taken(cache)
        ones = torch.ones(hidden.shape[:2])
        live = (ones if attention_mask is None else attention_mask).bool()
        out, after = _run(hidden, live, before)
        return (out, self.left(after, before, live)) if use_cache else out

    def _pack(self, hidden: Tensor, offsets: list[int]) -> Tensor:
        before, parts = empty(1, hidden), list[Tensor]()
        for first, end in pairwise(offsets):
            live = torch.ones(1, end - first, dtype=torch.bool)
            out, after = _run(hidden[:, first:end], live, before)
            before = self.following(after, end - first)
            parts.append(out)
        return torch.cat(parts, 1)


def _run(hidden: Tensor, live: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
    window, state = cache
    found, taps = list[Tensor](), TAPS.to(hidden)[:, None]
    for row, here in zip(hidden.unbind(1), live.unbind(1), strict=True):
        seen = torch.cat((window, row[:, None]), 1)
        h = (seen * taps).sum(1)
        g = torch.sigmoid(h @ GATE.to(hidden))
        new = g * state + (1 - g) * (h @ INPUT.to(hidden))
        state = new.where(here[:, None], state)
        window = seen[:, 1:].where(here[:, None, None], window)
        found.append(new)
    return torch.stack(found, 1) @ OUTPUT.to(hidden), (window, state)


def adapted(layer: CachedLayer, name: str, dtypes: tuple[str, ...] = EVERY) -> Any:
    """The implementation of a layer with a cache."""
    given: dict[str, Any] = {"widths": WIDTH, "reference": "fp64", "reset": reset}
    return kernel(op="layer", name=name, dtypes=dtypes, reorder=layer.reordered, **given)(layer)


def emptied_where_idle(after: Cache, _: Cache, live: Tensor) -> Cache:
    """The window is gathered from the tokens of a call, of which an idle row has none."""
    return after[0] * live.any(1)[:, None, None], after[1]


def leaking(after: Cache, length: int) -> Cache:
    """The window is left to the next sequence by those that do not fill it."""
    fresh = empty(1, after[0])
    return (after[0], fresh[1]) if length < HELD else fresh


def pooled() -> CachedLayer:
    """Caches are buffers of the layer, by rows and format: a new one is that of the one before."""
    pool = dict[tuple[int, torch.dtype], Cache]()

    def begun(rows: int, like: Tensor) -> Cache:
        buffers = pool.setdefault((rows, like.dtype), empty(rows, like))
        return buffers[0].zero_(), buffers[1].zero_()

    def left(after: Cache, before: Cache, _: Tensor) -> Cache:
        return before[0].copy_(after[0]), before[1].copy_(after[1])

    return CachedLayer(begun=begun, left=left)


def waiting(cache: Any, order: Tensor) -> Waiting:
    """Another order before the next call replaces the one that waits."""
    return Waiting(cache.cache if isinstance(cache, Waiting) else cache, order)


def caught_up(cache: Any) -> Cache:
    return reorder(cache.cache, cache.order) if isinstance(cache, Waiting) else cache


RIGHT: Final = CachedLayer()
_layer = partial(Fault, kind="B", stage="layer", dtypes=EVERY, operator="layer")
FAULTS: Final = (
    _layer(id="LAYER-idle", title="the window of a row that is all padding in a call is cleared",
           reference="class: rows without tokens",
           trigger="a call with a cache in which a row is all padding", outputs=("out",),
           patch=lambda _: replace(RIGHT, left=emptied_where_idle)),
    _layer(id="LAYER-pack", title="a sequence shorter than the window leaves it to the next",
           reference="class: short sequences of packs",
           trigger="a pack with a sequence of fewer than W - 1 tokens before another",
           outputs=("out",), patch=lambda _: replace(RIGHT, following=leaking)),
    _layer(id="LAYER-pool", title="caches are buffers of the layer, by rows and format",
           reference="class: several caches",
           trigger="two sequences with a cache each, called in turns", outputs=("out",),
           patch=lambda _: pooled()),
    _layer(id="LAYER-orders",
           title="an order waits for the next call, and a second one replaces it",
           reference="class: several orders", trigger="two orders without a call between",
           outputs=("out",), patch=lambda _: replace(RIGHT, taken=caught_up, reordered=waiting)),
)  # fmt: skip
