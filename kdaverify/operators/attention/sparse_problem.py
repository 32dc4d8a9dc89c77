"""Problems of attention over lists of cache slots."""

from __future__ import annotations

from typing import Final, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from kdaverify.operators.attention.lists import Lists, in_runs, listed, outside, with_ends
from kdaverify.operators.attention.problem import FINITE, SoftmaxProblem, Unused
from kdaverify.operators.cotangents import Loss, of_loss
from kdaverify.problems.axes import TORCH
from kdaverify.problems.portable import Stream
from oracles.attention.fp8 import LARGEST, SUBNORMAL, TILE, as_bytes, quantised
from oracles.attention.sparse import SparseCall

Cache = Literal["rows", "fp8"]
Invalid = Literal["negative", "outside"]
SPARE: Final = 8
"""One slot of so many is in no list, and but for `ends` the first and the last slot are not: what
is read there for an entry that names nothing shows."""
OUTLIER: Final = 64.0
"""Between tiles of a row where scales differ: a tile read with its neighbour's is off by that."""


class SparseProblem(SoftmaxProblem):
    """One problem of attention over lists of cache slots.

    Args:
        B, s_q: requests, and queries of each, every one with a list of its own.
        pages, page: of the cache, and slots of each.
        topk: entries of a list; lists: a key of PATTERNS.
        topk_lengths: how many leading entries count, by request; None: all.
        invalid: what names nothing: -1 alone, or every int32 number that is no slot.
        cache: rows in the format of q, or quantised to FP8.
        scales: of a quantised cache: powers of two, or any; neighbouring tiles far apart.
        codes: of a quantised cache: subnormal ones alone, or all.
        unused: what slots in no list hold: NaN, or finite numbers.
        loss: as of `AttentionProblem`.
    """

    op: Literal["sparse_attention"] = "sparse_attention"
    B: int = Field(default=1, ge=1)
    s_q: int = Field(default=1, ge=1)
    pages: int = Field(default=3, ge=1)
    page: int = Field(default=16, ge=1)
    topk: int = Field(default=8, ge=1)
    lists: Lists = "distinct"
    topk_lengths: tuple[int, ...] | None = None
    invalid: Invalid = "negative"
    cache: Cache = "rows"
    scales: Literal["powers", "any"] = "powers"
    codes: Literal["subnormal"] | None = None
    unused: Unused = "anything"
    loss: Loss | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.causal:
            raise ValueError("causal: wanted False, a list says what its query sees")
        if self.d_v >= self.d_k:
            raise ValueError(f"d_v: wanted fewer than d_k = {self.d_k}, got {self.d_v}")
        if self.slots < 3:
            raise ValueError(f"pages, page: wanted 3 slots or more, got {self.slots}")
        if self.cache == "fp8" and self.d_v % TILE:
            raise ValueError(f"d_v: wanted a multiple of {TILE} with cache='fp8', got {self.d_v}")
        lengths = self.topk_lengths
        if lengths is not None and (len(lengths) != self.B or min(lengths) < 0):
            raise ValueError(f"topk_lengths: wanted B = {self.B} of them, all >= 0, got {lengths}")
        return self

    @property
    def slots(self) -> int:
        return self.pages * self.page

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(queries, entries) of every list."""
        return ((1, self.topk),) * (self.B * self.s_q)

    @property
    def regime(self) -> str:
        cache = "" if self.cache == "rows" else f", {self.cache} cache, scales {self.scales}"
        sink = "" if self.sink is None else f", {self.sink} sink"
        return f"{self.logits}, {self.lists} lists{cache}{sink}"

    @property
    def stem(self) -> str:
        sizes = f"B{self.B}q{self.s_q}k{self.topk}of{self.slots}{self.heads}d{self.d_k}_{self.d_v}"
        cache = "" if self.cache == "rows" else f"-{self.cache}-{self.scales}"
        ends = cache + self._sunk + of_loss(self.loss)
        return f"sparse-{self.dtype}-{sizes}-{self.logits}-{self.lists}{ends}"

    def inputs(self) -> SparseCall:
        q, k = self.queries_and_keys("", self.B * self.s_q, self.slots)
        indices, cast = self._lists(), TORCH[self.dtype]
        named = torch.zeros(self.slots, dtype=torch.bool)
        named[indices[indices >= 0]] = True
        empty = FINITE if self.unused == "finite" else torch.nan
        rows = self._stored(k, ~named, empty)
        written = outside(indices, self.slots, rows[0]) if self.invalid == "outside" else indices
        return SparseCall(
            q.to(cast).unflatten(0, (self.B, self.s_q)),
            rows.unflatten(0, (self.pages, self.page)),
            written.to(torch.int32),
            None if self.topk_lengths is None else torch.tensor(self.topk_lengths).int(),
            self.d_v,
            self.softmax_scale,
            **self.sinks(self.topk),
        )

    def _lists(self) -> Tensor:
        """[B, s_q, topk], -1 for what names nothing."""
        inside = torch.arange(1, self.slots - 1)
        order = torch.from_numpy(Stream(self.seed, self.op, "slots").uniform(len(inside))).argsort()
        used = inside[order][: max(len(inside) - self.slots // SPARE, 1)]
        found = list[Tensor]()
        for n in range(self.B * self.s_q):
            own, draws = (
                torch.from_numpy(Stream(self.seed, self.op, name, n).uniform(count))
                for name, count in (("list", len(used)), ("entries", self.topk))
            )
            found.append(listed(self.lists, used[own.argsort()], draws, self.topk, n))
        lists = torch.stack(found)
        if self.lists == "ends":
            lists = with_ends(lists, self.slots)
        if self.lists == "runs":
            lists = in_runs(used, *lists.shape)
        return lists.unflatten(0, (self.B, self.s_q))

    def _stored(self, k: Tensor, nobody: Tensor, empty: float) -> Tensor:
        """Slots of the cache, those that nobody names filled with a number."""
        if self.cache == "rows":
            return k.masked_fill(nobody[:, None, None], empty).to(TORCH[self.dtype])
        if self.scales == "any":
            tiles = torch.arange(self.d_v // TILE) % 2 * OUTLIER + 1
            k[..., : self.d_v] *= tiles.repeat_interleave(TILE) / OUTLIER
        largest = LARGEST if self.codes is None else SUBNORMAL
        rows = quantised(k, self.d_v, powers=self.scales == "powers", largest=largest)
        spare = quantised(torch.full_like(k, empty), self.d_v, powers=True)
        return torch.where(nobody[:, None, None], as_bytes(spare), as_bytes(rows))
