"""Problems of attention, and of decode over a paged cache."""

from __future__ import annotations

from typing import Any, Final, Literal, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from kdaverify.canonical import Canonical
from kdaverify.operators.attention.regimes import VALUES, Logits, Values, shaped
from kdaverify.operators.attention.sinks import Sinks, sinks
from kdaverify.operators.cotangents import Loss, of_loss
from kdaverify.problems.axes import TORCH
from kdaverify.problems.portable import Stream
from oracles.attention.calls import AttentionCall, MlaDecodeCall

Dtype = Literal["fp32", "bf16", "fp16"]
Scale = Literal["default", "model", "small"]
SCALES: Final = {"default": 1.0, "model": 3.0**0.5, "small": 2.0**-6}
"""Multiples of d_k^-1/2: a model's own scale (192^-1/2 of 576 columns), and a small one."""
GARBAGE: Final = 2147480000
"""What table entries past the final page hold."""
Unused = Literal["anything", "finite"]
FINITE: Final = 16.0
"""What unused slots hold where they are finite: more than three times any normal number in use, so
that one that counts shows, and scores with it stay within fp16."""
Table = Literal[
    "identity",
    "reversed",
    "random",
    "shared",
    "leading",
    "half",
    "middle",
    "forks",
    "outer",
    "pair",
    "nested",
]


class SoftmaxProblem(Canonical):
    """What problems with queries and keys have in common.

    Args:
        H, h_kv: heads of queries and of keys; d_k, d_v: widths.
        scale: a key of SCALES; causal: bottom-right aligned.
        logits: a key of REGIMES.
        sink: a regime of sinks, None without; lse_includes_sink: what LSE is of, None as False.
    """

    dtype: Dtype = "fp32"
    seed: int = 1
    H: int = Field(default=4, ge=1)
    h_kv: int = Field(default=1, ge=1)
    d_k: int = Field(default=16, ge=2)
    d_v: int = Field(default=8, ge=1)
    scale: Scale = "default"
    causal: bool = False
    logits: Logits = "normal"
    sink: Sinks | None = None
    lse_includes_sink: bool | None = None

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
        if self.H % self.h_kv:
            raise ValueError(f"H: wanted a multiple of h_kv = {self.h_kv}, got {self.H}")
        return self

    @property
    def softmax_scale(self) -> float:
        return SCALES[self.scale] * self.d_k**-0.5

    @property
    def packed(self) -> bool:
        return False

    @property
    def lengths(self) -> tuple[int, ...] | None:
        return None

    @property
    def heads(self) -> str:
        return f"H{self.H}" + (f"_{self.h_kv}" if self.h_kv > 1 else "")

    @property
    def _seen(self) -> str:
        keys = "causal" if self.causal else "all keys"
        return keys if self.sink is None else f"{keys}, {self.sink} sink"

    @property
    def _sunk(self) -> str:
        return "" if self.sink is None else f"-{self.sink}_sink"

    def sinks(self, s_k: int) -> dict[str, Any]:
        """The fields of a call about the sink.

        Args:
            s_k: keys of the longest request.
        """
        if self.sink is None:
            return {}
        drawn = sinks(self.sink, self.normal("sink", self.H), self.logits, s_k)
        return {"sink": drawn, "lse_includes_sink": bool(self.lse_includes_sink)}

    def normal(self, name: str, *shape: int) -> Tensor:
        """Normal numbers of a tensor, in float64."""
        return torch.from_numpy(Stream(self.seed, self.op, name).normal(*shape))

    def queries_and_keys(self, name: str, s_q: int, s_k: int) -> tuple[Tensor, Tensor]:
        """[s_q, H, d_k] and [s_k, h_kv, d_k] of one request."""
        q = self.normal(f"q {name}", s_q, self.H, self.d_k)
        k = self.normal(f"k {name}", s_k, self.h_kv, self.d_k)
        return shaped(self.logits, q, k, self.softmax_scale)


class AttentionProblem(SoftmaxProblem):
    """One problem of dense attention.

    Args:
        B, s_q, s_k: batch entries, rows of queries and of keys; B = 1 with lengths.
        q_lengths, k_lengths: of the requests of a pack, both or neither; rows past their sums are
            nobody's.
        value: a key of VALUES.
        loss: uneven, where incoming gradients of heads and tokens differ by powers of two.
    """

    op: Literal["attention"] = "attention"
    B: int = Field(default=1, ge=1)
    s_q: int = Field(default=1, ge=1)
    s_k: int = Field(default=1, ge=1)
    q_lengths: tuple[int, ...] | None = None
    k_lengths: tuple[int, ...] | None = None
    value: Values = "normal"
    loss: Loss | None = None

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if (self.q_lengths is None) != (self.k_lengths is None):
            raise ValueError("q_lengths, k_lengths: wanted both or neither")
        if self.q_lengths is None or self.k_lengths is None:
            return self
        fine = self.B == 1 and len(self.q_lengths) == len(self.k_lengths) > 0
        pairs = ((self.q_lengths, self.s_q), (self.k_lengths, self.s_k))
        if not fine or any(min(found) < 0 or sum(found) > most for found, most in pairs):
            raise ValueError(
                f"q_lengths, k_lengths: wanted B = 1, as many of both, sums within s_q = {self.s_q}"
                f" and s_k = {self.s_k}, got {self.q_lengths}, {self.k_lengths}, B = {self.B}"
            )
        return self

    @property
    def packed(self) -> bool:
        return self.q_lengths is not None

    @property
    def lengths(self) -> tuple[int, ...] | None:
        return self.q_lengths

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(s_q, s_k) of every request."""
        if self.q_lengths is None or self.k_lengths is None:
            return ((self.s_q, self.s_k),) * self.B
        return tuple(zip(self.q_lengths, self.k_lengths, strict=True))

    @property
    def regime(self) -> str:
        return f"{self.logits}, {self.value}, {self._seen}"

    @property
    def stem(self) -> str:
        requests = f"N{len(self.pairs)}" if self.packed else f"B{self.B}"
        sizes = f"{requests}q{self.s_q}k{self.s_k}{self.heads}d{self.d_k}_{self.d_v}"
        ends = ("-causal" if self.causal else "") + self._sunk + of_loss(self.loss)
        return f"attention-{self.dtype}-{sizes}-{self.logits}-{self.value}{ends}"

    def inputs(self) -> AttentionCall:
        parts = [self.queries_and_keys(f"{n}", s_q, s_k) for n, (s_q, s_k) in enumerate(self.pairs)]
        values = [
            VALUES[self.value][1](self.normal(f"v {n}", s_k, self.h_kv, self.d_v))
            for n, (_, s_k) in enumerate(self.pairs)
        ]
        tensors = [
            self._rows(name, rows, found)
            for name, rows, found in (
                ("q", self.s_q, [q for q, _ in parts]),
                ("k", self.s_k, [k for _, k in parts]),
                ("v", self.s_k, values),
            )
        ]
        offsets = [None if x is None else _offsets(x) for x in (self.q_lengths, self.k_lengths)]
        return AttentionCall(
            tensors[0],
            tensors[1],
            tensors[2],
            offsets[0],
            offsets[1],
            self.softmax_scale,
            self.causal,
            **self.sinks(max(s_k for _, s_k in self.pairs)),
        )

    def _rows(self, name: str, rows: int, parts: list[Tensor]) -> Tensor:
        """Requests one after another in a pack, with rows of nobody behind, or one an entry."""
        if not self.packed:
            return torch.stack(parts).to(TORCH[self.dtype])
        spare = rows - sum(map(len, parts))
        behind = self.normal(f"{name} of nobody", spare, *parts[0].shape[1:])
        return torch.cat((*parts, behind))[None].to(TORCH[self.dtype])


def _offsets(lengths: tuple[int, ...]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)


class MlaDecodeProblem(SoftmaxProblem):
    """One problem of decode over a paged cache.

    Args:
        k_lengths: cached tokens of every request; s_q: queries of each.
        page: tokens of a page.
        table: identity, reversed (from the final page of the cache on, and up to the last column of
            the table), or random. What requests have in common with the first one: all leading full
            pages (shared), the first (leading), half of them (half), those but the first and the
            last (middle), or, where they are no longer, all their pages, full or not (forks). What
            one request alone has in common with the first: the last one all leading full pages
            (outer), or the second (pair); the last one all and the others the first page (nested).
        unused: what slots and pages that no token lies in hold: NaN, or finite numbers.
    """

    op: Literal["mla_decode"] = "mla_decode"
    k_lengths: tuple[int, ...] = (1,)
    s_q: int = Field(default=1, ge=1)
    page: int = Field(default=16, ge=1)
    table: Table = "random"
    causal: bool = True
    unused: Unused = "anything"

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if not self.k_lengths or min(self.k_lengths) < 0:
            raise ValueError(f"k_lengths: wanted some, all >= 0, got {self.k_lengths}")
        if self.d_v >= self.d_k:
            raise ValueError(f"d_v: wanted fewer than d_k = {self.d_k}, got {self.d_v}")
        return self

    @property
    def B(self) -> int:
        return len(self.k_lengths)

    @property
    def pairs(self) -> tuple[tuple[int, int], ...]:
        """(s_q, s_k) of every request."""
        return tuple((self.s_q, s_k) for s_k in self.k_lengths)

    @property
    def regime(self) -> str:
        return f"{self.logits}, {self.table} table, {self._seen}"

    @property
    def stem(self) -> str:
        sizes = f"B{self.B}q{self.s_q}k{max(self.k_lengths)}{self.heads}d{self.d_k}_{self.d_v}"
        ends = ("-causal" if self.causal else "") + self._sunk
        return f"mla_decode-{self.dtype}-{sizes}p{self.page}-{self.logits}-{self.table}{ends}"

    def inputs(self) -> MlaDecodeCall:
        parts = [
            self.queries_and_keys(f"{n}", self.s_q, s_k) for n, s_k in enumerate(self.k_lengths)
        ]
        rows, cast = [k for _, k in parts], TORCH[self.dtype]
        table, count = self._table()
        rows = [self._with_common(rows, n) for n in range(self.B)]
        shape = (count, self.page, self.h_kv, self.d_k)
        empty = FINITE if self.unused == "finite" else torch.nan
        cache = torch.full(shape, empty, dtype=torch.float64)
        for n, k in enumerate(rows):
            for j, part in enumerate(k.split(self.page) if len(k) else ()):
                cache[table[n][j], : len(part)] = part
        width = max(map(len, table)) + (self.table != "reversed")
        padded = [[*pages, *[GARBAGE] * (width - len(pages))] for pages in table]
        lengths = torch.tensor(self.k_lengths, dtype=torch.int32)
        return MlaDecodeCall(
            torch.stack([q for q, _ in parts]).to(cast),
            cache.to(cast),
            torch.tensor(padded, dtype=torch.int32),
            lengths,
            self.d_v,
            self.softmax_scale,
            self.causal,
            **self.sinks(max(self.k_lengths)),
        )

    @property
    def shares(self) -> bool:
        """Whether requests have pages in common."""
        return any(self._common(n) for n in range(self.B))

    def _common(self, request: int) -> range:
        """The columns of the table in which a request has the pages of the first one."""
        first, own = self.k_lengths[0], self.k_lengths[request]
        full, used = min(first, own) // self.page, -(-own // self.page)
        found = {
            "shared": range(full),
            "leading": range(min(full, 1)),
            "half": range(-(-full // 2)),
            "middle": range(1, max(full - 1, 1)),
            "forks": range(used if own <= first else full),
            "outer": range(full if request == self.B - 1 else 0),
            "pair": range(full if request == 1 else 0),
            "nested": range(full if request == self.B - 1 else min(full, 1)),
        }
        return found.get(self.table, range(0)) if request else range(0)

    def _with_common(self, rows: list[Tensor], request: int) -> Tensor:
        common = self._common(request)
        there = slice(common.start * self.page, common.stop * self.page)
        found = rows[request].clone()
        found[there] = rows[0][there][: len(found[there])]
        return found

    def _table(self) -> tuple[list[list[int]], int]:
        """The physical pages of every request, and how many pages there are: some are free."""
        used = [-(-s_k // self.page) for s_k in self.k_lengths]
        common = [self._common(n) for n in range(self.B)]
        count = sum(used) - sum(map(len, common)) + 3
        order = [*range(count)]
        if self.table == "reversed":
            order.reverse()
        elif self.table != "identity":
            draws = Stream(self.seed, self.op, "table").uniform(count)
            order.sort(key=lambda at: draws[at])
        free, found = iter(order), list[list[int]]()
        for pages, shared in zip(used, common, strict=True):
            found.append([found[0][j] if j in shared else next(free) for j in range(pages)])
        return found, count
