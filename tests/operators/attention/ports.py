"""Ports of attention, of paged decode and of merges, written for these tests: right ones in
conventions that are not ours, and faulty ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, Final

import torch
from torch import Tensor

import kdaverify as kv

FORMATS: Final = ("fp32", "bf16")
BLOCK: Final = 32


def _bottom_right(s_q: int, s_k: int) -> Tensor:
    return torch.ones(s_q, s_k, dtype=torch.bool).tril(s_k - s_q)


def _top_left(s_q: int, s_k: int) -> Tensor:
    return torch.ones(s_q, s_k, dtype=torch.bool).tril()


def _online(scores: Tensor, v: Tensor, narrow: torch.dtype) -> tuple[Tensor, Tensor]:
    """Blocks of keys from the right, P in `narrow`: (o, lse), lse -inf without keys."""
    top = scores.new_full((*scores.shape[:2], 1), -1e30)
    total, o = torch.zeros_like(top), scores.new_zeros(*scores.shape[:2], v.shape[2])
    for first in reversed(range(0, scores.shape[2], BLOCK)):
        s, part = scores[..., first : first + BLOCK], v[:, first : first + BLOCK]
        higher = torch.maximum(top, s.amax(-1, keepdim=True))
        scale, p = (top - higher).exp(), (s - higher).exp()
        total = total * scale + p.sum(-1, keepdim=True)
        o = o * scale + p.to(narrow).float() @ part
        top = higher
    return o / torch.where(total == 0, 1.0, total), (top + total.log()).squeeze(-1)


def _rows(cache: Tensor, table: Tensor, length: int) -> Tensor:
    page = cache.shape[1]
    return cache[table[: -(-length // page)].long()].flatten(0, 1)[:length]


@dataclass(frozen=True)
class Port:
    """The parts of a port that faults replace."""

    scale: Callable[[float, int], float] = lambda c, _: c
    border: Callable[[int, int], Tensor] = _bottom_right
    core: Callable[..., tuple[Tensor, Tensor]] = _online
    heads: Callable[[Tensor, int], Tensor] = lambda x, group: x.repeat_interleave(group, 0)
    rows: Callable[[Tensor, Tensor, int], Tensor] = _rows
    length: Callable[[Tensor, int], int] = lambda lengths, b: int(lengths[b])
    base: float = 1.0
    empty: float = -math.inf
    finish: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda o, lse: (o, lse)

    def one(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, *, causal: bool
    ) -> tuple[Tensor, Tensor]:
        """[s_q, H, d_v] and [H, s_q] of one request."""
        group = q.shape[1] // k.shape[1]
        q_, k_, v_ = (x.float().transpose(0, 1) for x in (q, k, v))
        scores = q_ @ self.heads(k_, group).mT * self.scale(scale, q.shape[2])
        if causal:
            scores = scores.masked_fill(~self.border(*scores.shape[1:]), -torch.inf)
        o, lse = self.core(scores, self.heads(v_, group), q.dtype)
        lse = torch.where(torch.isneginf(lse) | (lse < -1e29), self.empty, lse * self.base)
        return o.transpose(0, 1).to(q.dtype), lse

    def attention(self, q: Any, k: Any, v: Any, *, softmax_scale: float, causal: bool) -> Any:
        parts = [self.one(*x, softmax_scale, causal=causal) for x in zip(q, k, v, strict=True)]
        o, lse = zip(*parts, strict=True)
        return self.finish(torch.stack(o), torch.stack(lse))

    def decode(
        self,
        q: Any,
        cache: Any,
        block_table: Any,
        cache_seqlens: Any,
        *,
        d_v: int,
        softmax_scale: float,
        causal: bool,
    ) -> Any:
        parts = list[Any]()
        for b in range(len(q)):
            k = self.rows(cache, block_table[b], self.length(cache_seqlens, b))
            parts.append(self.one(q[b], k, k[..., :d_v], softmax_scale, causal=causal))
        o, lse = zip(*parts, strict=True)
        return self.finish(torch.stack(o), torch.stack(lse))


def adapter(op: str, port: Port, name: str = "port", **options: Any) -> Any:
    function = port.attention if op == "attention" else port.decode
    given: dict[str, Any] = {"dtypes": FORMATS, "gradients": False, **options}
    return kv.kernel(op=op, name=name, **given)(function)


RIGHT: Final = Port()
FOREIGN: Final = replace(RIGHT, base=1 / math.log(2), empty=math.inf)
"""LSE to base 2, +inf without keys."""
TOP_LEFT: Final = replace(RIGHT, border=_top_left)


def _whole(*, tails: bool, fill: float | None) -> Any:
    """Attention of all requests at once over whole tables, as serving engines gather them.

    Args:
        tails: whether entries of the table past a request are read.
        fill: of values past a request; None: as they are.
    """

    def decode(
        q: Any, cache: Any, block_table: Any, cache_seqlens: Any, *, d_v: int,
        softmax_scale: float, causal: bool,
    ) -> Any:  # fmt: skip
        page, H, s_q = cache.shape[1], q.shape[2], q.shape[1]
        at = torch.arange(block_table.shape[1] * page)
        seen = (at < cache_seqlens[:, None])[:, None]
        if causal:
            rows = cache_seqlens[:, None] - s_q + torch.arange(s_q)
            seen = at <= rows[..., None]
        pages = torch.arange(block_table.shape[1]) * page < cache_seqlens[:, None]
        table = block_table if tails else block_table.masked_fill(~pages, 0)
        k = cache[table.long()].flatten(1, 2).float()
        k = k.repeat_interleave(H // k.shape[2], 2)
        v = k[..., :d_v]
        if fill is not None:
            v = v.masked_fill((at >= cache_seqlens[:, None])[..., None, None], fill)
        scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k) * softmax_scale
        scores = scores.masked_fill(~seen[:, None], -torch.inf)
        top = scores.amax(-1, keepdim=True)
        top = top.masked_fill(top == -torch.inf, 0.0)
        weights = (scores - top).exp()
        total = weights.sum(-1)
        o = torch.einsum("bhqk,bkhd->bqhd", weights, v)
        o = o / total.masked_fill(total == 0, 1.0).transpose(1, 2)[..., None]
        return o.to(q.dtype), top.squeeze(-1) + total.log()

    return decode


WHOLE: Final[Mapping[str, Any]] = {
    "values times 0": _whole(tails=False, fill=None),
    "values masked": _whole(tails=False, fill=0.0),
    "whole tables": _whole(tails=True, fill=0.0),
    "whole tables, values times 0": _whole(tails=True, fill=None),
}
"""Gathers of serving engines."""


def whole(name: str, **options: Any) -> Any:
    given: dict[str, Any] = {"dtypes": FORMATS, "contract": "math-fp32", **options}
    return kv.kernel(op="mla_decode", name="whole", **given)(WHOLE[name])


def one_more(cache: Tensor, table: Tensor, length: int) -> Tensor:
    """Up to the end of the last block."""
    return cache[table[: -(-length // cache.shape[1])].long()].flatten(0, 1)


def one_mask(
    q: Any, k: Any, v: Any, *, cu_seqlens_q: Any, cu_seqlens_k: Any, softmax_scale: float,
    causal: bool,
) -> Any:  # fmt: skip
    """A pack as one product under one mask: rows of nobody are masked by a weight of 0."""
    H, group = q.shape[-2], q.shape[-2] // k.shape[-2]
    k, v = (x.repeat_interleave(group, -2).float() for x in (k, v))
    if cu_seqlens_q is None:
        seen = _bottom_right(q.shape[1], k.shape[1]) if causal else torch.ones(1, dtype=torch.bool)
    else:
        seen = torch.zeros(len(q), len(k), dtype=torch.bool)
        spans = zip(*(pairwise(x.tolist()) for x in (cu_seqlens_q, cu_seqlens_k)), strict=True)
        for (a, b), (c, d) in spans:
            seen[a:b, c:d] = _bottom_right(b - a, d - c) if causal else True
    scores = torch.einsum("...qhd,...khd->...hqk", q.float(), k) * softmax_scale
    scores = scores.masked_fill(~seen, -torch.inf)
    lse = scores.logsumexp(-1)
    weights = (scores - lse.nan_to_num(neginf=0.0)[..., None]).exp()
    assert weights.shape[-3] == H
    return torch.einsum("...hqk,...khd->...qhd", weights, v).to(q.dtype), lse


def merge(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    """In base 2, +inf for no key."""
    a, b = (x.masked_fill(torch.isposinf(x), -torch.inf) for x in (lse_a, lse_b))
    top = torch.maximum(a, b)
    known = top.masked_fill(torch.isneginf(top), 0.0)
    w = [torch.exp2(x - known).mT[..., None] for x in (a, b)]
    total = w[0] + w[1]
    lse = (known.mT[..., None] + total.log2()).squeeze(-1).mT
    o = (w[0] * o_a.float() + w[1] * o_b.float()) / total.masked_fill(total == 0, 1.0)
    return o.to(o_a.dtype), lse.masked_fill(torch.isneginf(lse), torch.inf)


def interpolated(
    o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor, narrow: torch.dtype = torch.float32
) -> tuple[Tensor, Tensor]:
    """o_a moved towards o_b by the weight of b, which is rounded to a format first."""
    _, lse = merge(o_a, lse_a, o_b, lse_b)
    empty = [torch.isposinf(x) for x in (lse_a, lse_b)]
    w = torch.sigmoid((lse_b - lse_a) * math.log(2)).masked_fill(empty[0], 1.0)
    w = w.masked_fill(empty[1], 0.0).to(narrow).float().mT[..., None]
    a, b = (
        o.float().masked_fill(x.mT[..., None], 0.0) for o, x in zip((o_a, o_b), empty, strict=True)
    )
    return (a - w * (a - b)).to(o_a.dtype), lse


def merged(function: Any, name: str = "merge", **options: Any) -> Any:
    given: dict[str, Any] = {"lse": "2", "empty_lse": "+inf", "dtypes": FORMATS, **options}
    return kv.kernel(op="merge_state", name=name, **given)(function)


def _merge_averages(o_a: Any, lse_a: Any, o_b: Any, lse_b: Any) -> Any:
    _, lse = merge(o_a, lse_a, o_b, lse_b)
    return ((o_a.float() + o_b.float()) / 2).to(o_a.dtype), lse


def _merge_largest(o_a: Any, lse_a: Any, o_b: Any, lse_b: Any) -> Any:
    o, lse = merge(o_a, lse_a, o_b, lse_b)
    return o, torch.where(torch.isinf(lse), lse, torch.maximum(lse_a, lse_b).nan_to_num(posinf=0))


def _merge_empty_has_all(o_a: Any, lse_a: Any, o_b: Any, lse_b: Any) -> Any:
    w = torch.sigmoid((lse_a - lse_b) * math.log(2)).mT[..., None]
    _, lse = merge(o_a, lse_a, o_b, lse_b)
    return (w * o_a.float() + (1 - w) * o_b.float()).to(o_a.dtype), lse


MERGE_FAULTS: Final[Mapping[str, Any]] = {
    "averages": _merge_averages,
    "lse of the larger part": _merge_largest,
    "C8 an empty part has all weight": _merge_empty_has_all,
    "interpolates by a weight in 16 bits": partial(interpolated, narrow=torch.float16),
}


def _last_block_lse(s: Tensor, v: Tensor, narrow: torch.dtype) -> tuple[Tensor, Tensor]:
    o, _ = _online(s, v, narrow)
    first = max((s.shape[2] - 1) // BLOCK * BLOCK, 0)
    return o, _online(s[..., first:], v[:, first:], narrow)[1]


def _no_rescale(s: Tensor, v: Tensor, narrow: torch.dtype) -> tuple[Tensor, Tensor]:
    o, lse = _online(s, v, narrow)
    head = s[..., :BLOCK]
    if head.shape[2] < s.shape[2]:
        o = o + 0.05 * _online(head, v[:, :BLOCK], narrow)[0]
    return o, lse


def _clamped(s: Tensor, v: Tensor, narrow: torch.dtype) -> tuple[Tensor, Tensor]:
    return _online(s.clamp(max=88.0), v, narrow)


def _narrow_scores(s: Tensor, v: Tensor, narrow: torch.dtype) -> tuple[Tensor, Tensor]:
    return _online(s.bfloat16().float(), v, narrow)


def _unwritten_empty(s: Tensor, v: Tensor, narrow: torch.dtype) -> tuple[Tensor, Tensor]:
    o, lse = _online(s, v, narrow)
    return o, torch.where(torch.isneginf(lse) | (lse < -1e29), -49993.0, lse)


def zero_empty(s: Tensor, v: Tensor, narrow: torch.dtype) -> tuple[Tensor, Tensor]:
    """LSE of a row without keys is 0."""
    o, lse = _online(s, v, narrow)
    return o, torch.where(torch.isneginf(lse) | (lse < -1e29), 0.0, lse)


def _nan_without_guard(s: Tensor, v: Tensor, narrow: torch.dtype) -> tuple[Tensor, Tensor]:
    del narrow
    return s.softmax(-1) @ v, s.logsumexp(-1)


def _tail_dropped(s: Tensor, v: Tensor, narrow: torch.dtype) -> tuple[Tensor, Tensor]:
    kept = s.shape[2] - (s.shape[2] % BLOCK == 1 and s.shape[2] > 1)
    return _online(s[..., :kept], v[:, :kept], narrow)


def _contiguous(cache: Tensor, table: Tensor, length: int) -> Tensor:
    pages = -(-length // cache.shape[1])
    first = int(table[0]) if pages else 0
    at = (first + torch.arange(pages)).clamp(max=len(cache) - 1)
    return cache[at].nan_to_num().flatten(0, 1)[:length]


def _first_slot(cache: Tensor, table: Tensor, length: int) -> Tensor:
    page = cache.shape[1]
    found = cache[table[: -(-length // page)].long()]
    return found[:, :1].expand_as(found).flatten(0, 1)[:length]


# Stand-ins for a part of a port, of whatever types that part has.
# pyright: reportUnknownLambdaType=false
FAULTS: Final[Mapping[str, Port]] = {
    "S3 scale inverted": replace(RIGHT, scale=lambda c, _: 1 / c),
    "S1 default scale": replace(RIGHT, scale=lambda _, d_k: d_k**-0.5),
    "M1 border at the top left": TOP_LEFT,
    "M4 flag without effect": replace(RIGHT, border=lambda q, k: torch.ones(q, k) > 0),
    "C5 lse of the last block": replace(RIGHT, core=_last_block_lse),
    "first block not rescaled": replace(RIGHT, core=_no_rescale),
    "exponents clamped at 88": replace(RIGHT, core=_clamped),
    "scores in bf16": replace(RIGHT, core=_narrow_scores),
    "C9 finite lse of rows without keys": replace(RIGHT, core=_unwritten_empty),
    "S5 no guard": replace(RIGHT, core=_nan_without_guard),
    "last key of a tail dropped": replace(RIGHT, core=_tail_dropped),
    "tiled heads": replace(RIGHT, heads=lambda x, group: x.repeat(group, 1, 1)),
    "lse with H and s_q swapped": replace(
        RIGHT, finish=lambda o, lse: (o, lse.transpose(1, 2).contiguous())
    ),
    "lse in the other order": replace(
        RIGHT,
        finish=lambda o, lse: (
            o,
            lse.transpose(1, 2).contiguous().view_as(lse),
        ),
    ),
    "lse without its maximum": replace(
        RIGHT, finish=lambda o, lse: (o, lse - lse.nan_to_num().amax())
    ),
    "C6 lse 0": replace(RIGHT, finish=lambda o, lse: (o, torch.zeros_like(lse))),
}
DECODE_FAULTS: Final[Mapping[str, Port]] = {
    **FAULTS,
    "G1 pages read as if contiguous": replace(RIGHT, rows=_contiguous),
    "G3 offset in a page dropped": replace(RIGHT, rows=_first_slot),
    "W3 lengths of the longest request": replace(
        RIGHT,
        length=lambda lengths, b: max(int(lengths[b]) - (int(lengths[b]) < int(lengths.max())), 0),
    ),
    "M10 lengths of the next request": replace(
        RIGHT, length=lambda lengths, b: min(int(lengths[b]), int(lengths[(b + 1) % len(lengths)]))
    ),
}
