"""The schedule of a split-KV decode as integers: work, traffic, and requests cut apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from kdaverify.budgets.formats import Format
from oracles.attention.design import Span
from oracles.attention.split import KEYS, OVERHEAD, Schedule, schedule


@dataclass(frozen=True)
class Heads:
    """Sizes of a call beside its lengths: queries a request, heads and widths."""

    s_q: int = 1
    H: int = 128
    h_kv: int = 1
    d_k: int = 576
    d_v: int = 512


@dataclass(frozen=True)
class PartialFormat:
    """What partials are stored in: o, and its LSE."""

    o: Format
    lse: Format

    @property
    def name(self) -> str:
        return self.o.name if self.lse.name == "fp32" else f"{self.o.name}, lse {self.lse.name}"


@dataclass(frozen=True)
class SplitPlan:
    """What a card makes of a batch of requests.

    Args:
        lengths: cached tokens of every request.
        sms: streaming multiprocessors of the card: another card cuts, and rounds, otherwise.
        heads: sizes.
    """

    lengths: tuple[int, ...]
    sms: int
    heads: Heads = Heads()

    @cached_property
    def schedule(self) -> Schedule:
        h = self.heads
        return schedule(self.lengths, sms=self.sms, s_q=h.s_q, H=h.H, h_kv=h.h_kv)

    @cached_property
    def spans(self) -> list[tuple[Span, ...]]:
        """The keys of every split of every request."""
        found: list[list[Span]] = [[] for _ in self.lengths]
        for part in self.schedule.parts:
            for cut in part:
                end = min(cut.last * KEYS, self.lengths[cut.request])
                found[cut.request].append((cut.first * KEYS, end))
        return [tuple(spans) for spans in found]

    def alone(self, request: int) -> tuple[Span, ...]:
        """The splits of a request in a call with no other."""
        return replace(self, lengths=(self.lengths[request],)).spans[0]

    @cached_property
    def alike(self) -> list[tuple[int, ...]]:
        """Requests by their keys and cuts."""
        found: dict[tuple[Span, ...], list[int]] = {}
        for n, spans in enumerate(self.spans):
            found.setdefault(spans, []).append(n)
        return [tuple(numbers) for numbers in found.values()]

    @cached_property
    def work(self) -> list[int]:
        """Blocks of every part, the overhead of beginning a request included."""
        parts = self.schedule.parts
        return [sum(cut.last - cut.first + OVERHEAD for cut in part) for part in parts]

    @property
    def balance(self) -> float:
        """Mean over largest work of a part: 1 where all parts end together."""
        return sum(self.work) / (len(self.work) * max(self.work))

    def cache_bytes(self, io: Format) -> int:
        """Read from the cache, once a key: rows of all heads share a tile."""
        return sum(self.lengths) * self.heads.h_kv * self.heads.d_k * io.dtype.itemsize

    def partial_bytes(self, partial: PartialFormat) -> int:
        """Written as partials and read by the merge; a request that is not split has none."""
        row = self.heads.d_v * partial.o.dtype.itemsize + partial.lse.dtype.itemsize
        split = sum(len(spans) for spans in self.spans if len(spans) > 1)
        return 2 * self.heads.s_q * self.heads.H * row * split
