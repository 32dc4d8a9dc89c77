"""A small layer of softmax attention whose cache has room for some tokens, and faults where it
grows.

A blind port was accepted that copied as many tokens of every row as the first one had: no problem
of whole layers had more than 70 tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters import kernel
from kdaverify.faults.fault import Fault
from kdaverify.faults.layer import EVERY, GATE, INPUT, OUTPUT, WIDTH

ROOM: Final = 256
"""Tokens that a cache has room for when it is made; later it has twice as much."""
SEGMENT: Final = 256
"""Tokens of a prompt that are computed at once."""
LONG: Final = 512
"""Tokens from which on a single one sees the cache block by block."""


@dataclass(frozen=True)
class KeyCache:
    """Args: k, v: [B, room, D], the tokens of every row without gaps; count: [B] of them."""

    k: Tensor
    v: Tensor
    count: Tensor

    @property
    def room(self) -> int:
        return self.k.shape[1]

    def grown(self, tokens: int, kept: int) -> KeyCache:
        """With room for so many tokens, and the first ones of every row kept."""
        room = max(ROOM, self.room)
        while room < tokens:
            room *= 2
        more = room - kept
        k, v = (
            torch.cat((x[:, :kept], x.new_zeros(len(x), more, WIDTH)), 1) for x in (self.k, self.v)
        )
        return KeyCache(k, v, self.count)


def all_tokens(count: Tensor) -> int:
    """How many tokens of every row are copied where a cache grows."""
    return int(count.max())


def of_the_first_row(count: Tensor) -> int:
    return int(count[0])


def up_to_its_own(place: Tensor, _: Tensor) -> Tensor:
    """[B, T], the place of the last token that each sees.

    Args:
        place: [B, T], its own; the second: [B], tokens of every row.
    """
    return place


def of_the_longest_row(place: Tensor, count: Tensor) -> Tensor:
    """A single token over a long cache: blocks are masked by the longest row alone."""
    long = place.shape[1] == 1 and int(count.max()) > LONG
    return count.max().expand_as(place) - 1 if long else place


def as_given(live: Tensor) -> Tensor:
    return live


def by_segments(live: Tensor) -> Tensor:
    """Every segment has the first columns of the mask."""
    return torch.cat([live[:, : x.shape[1]] for x in live.split(SEGMENT, 1)], 1)


@dataclass(frozen=True)
class GrowingLayer:
    """Math: out_t = W_o sum_{s <= t} softmax(W_q h_t . W_k h_s / sqrt(D)) h_s.

    Args:
        copied: how many tokens are copied where the cache grows.
        single_grows: whether the cache grows for single tokens too.
        read: tokens of every row that a token sees.
        masked: the mask of a call.
    """

    copied: Callable[[Tensor], int] = all_tokens
    single_grows: bool = True
    read: Callable[[Tensor, Tensor], Tensor] = up_to_its_own
    masked: Callable[[Tensor], Tensor] = as_given

    def __call__(
        self,
        hidden: Tensor,
        *,
        cache: KeyCache | None = None,
        attention_mask: Tensor | None = None,
        use_cache: bool = False,
    ) -> Any:
        ones = torch.ones(hidden.shape[:2])
        live = self.masked((ones if attention_mask is None else attention_mask).bool())
        held = empty(hidden) if cache is None else cache
        place = (held.count[:, None] + live.cumsum(1) - 1).clamp(min=0)
        count = held.count + live.sum(1)
        grows = self.single_grows or hidden.shape[1] > 1 or not held.room
        if int(count.max()) > held.room and grows:
            held = held.grown(int(count.max()), self.copied(held.count))
        place = place.clamp(max=held.room - 1)
        k, v = held.k.clone(), held.v.clone()
        for row, (at, here) in enumerate(zip(place, live, strict=True)):
            k[row, at[here]], v[row, at[here]] = (
                hidden[row, here] @ INPUT.to(hidden),
                hidden[row, here],
            )
        logits = (hidden @ GATE.to(hidden)) @ k.mT / WIDTH**0.5
        hides = torch.arange(k.shape[1]) > self.read(place, count)[..., None]
        read = logits.masked_fill(hides, -torch.inf).softmax(-1) @ v
        out = read @ OUTPUT.to(hidden)
        return (out, KeyCache(k, v, count)) if use_cache else out


def empty(hidden: Tensor) -> KeyCache:
    """Of no tokens, and without room."""
    rows = hidden.new_zeros(len(hidden), 0, WIDTH)
    return KeyCache(rows, rows, torch.zeros(len(hidden), dtype=torch.int64))


def reset(cache: KeyCache) -> KeyCache:
    return replace(cache, count=torch.zeros_like(cache.count))


def reorder(cache: KeyCache, order: Tensor) -> KeyCache:
    return KeyCache(cache.k[order], cache.v[order], cache.count[order])


def adapted(layer: GrowingLayer, name: str, dtypes: tuple[str, ...] = EVERY) -> Any:
    """The implementation of a layer whose cache grows."""
    given: dict[str, Any] = {"widths": WIDTH, "reference": "fp64", "reset": reset}
    return kernel(op="layer", name=name, dtypes=dtypes, reorder=reorder, **given)(layer)


RIGHT: Final = GrowingLayer()
_layer = partial(
    Fault, kind="B", stage="layer", dtypes=EVERY, operator="layer", outputs=("out",),
)  # fmt: skip
FAULTS: Final = (
    _layer(id="LAYER-grown", title="a cache that grows keeps as many tokens as the first row has",
           trigger=f"more than {ROOM} tokens in a later call, in a row with more than the first",
           reference="class: caches that grow",
           patch=lambda _: replace(RIGHT, copied=of_the_first_row)),
    _layer(id="LAYER-full", title="a single token past the room of the cache overwrites the last",
           trigger=f"decode past {ROOM} tokens", reference="class: caches that grow",
           patch=lambda _: replace(RIGHT, single_grows=False)),
    _layer(id="LAYER-blocks", title="a single token sees as many keys as the longest row has",
           trigger=f"a token after more than {LONG}, rows of unequal lengths",
           reference="class: padding at sizes that models have",
           patch=lambda _: replace(RIGHT, read=of_the_longest_row)),
    _layer(id="LAYER-segments", title=f"every {SEGMENT} tokens have the first columns of the mask",
           trigger=f"padding on the left, more than {SEGMENT} tokens",
           reference="class: padding at sizes that models have",
           patch=lambda _: replace(RIGHT, masked=by_segments)),
)  # fmt: skip
