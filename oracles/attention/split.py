"""Split-KV: partial results over parts of the keys, their merge, and the schedule of splits."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

import torch
from torch import Tensor

from oracles.attention.exact import attend
from oracles.attention.segment import Segment
from oracles.pointwise.rounding import FUNCTION_UNITS, Precision, RoundingError

State = tuple[Tensor, Tensor]
"""o [..., d_v] and lse [...]; (0, -inf) of no key is the identity of the merge."""
OVERHEAD: Final = 5
"""Blocks that beginning a request costs in the schedule."""
KEYS: Final = 64
"""Keys of a block, and rows of queries of a tile, in the schedule."""


def merge(o_a: Tensor, lse_a: Tensor, o_b: Tensor, lse_b: Tensor) -> State:
    """One state over the keys of both, in float64.

    Math: L = ln(exp(lse_a) + exp(lse_b)), O = sum exp(lse_s - L) o_s; a part of weight 0 adds
    nothing, whatever it holds.
    """
    parts = ((o_a.double(), lse_a.double()), (o_b.double(), lse_b.double()))
    total = torch.logaddexp(parts[0][1], parts[1][1])
    weights = [_weight(lse, total)[..., None] for _, lse in parts]
    terms = [torch.where(w > 0, w * o, 0.0) for w, (o, _) in zip(weights, parts, strict=True)]
    return terms[0] + terms[1], total


def _weight(lse: Tensor, total: Tensor) -> Tensor:
    return torch.where(torch.isneginf(lse), 0.0, (lse - total).exp())


def merge_errors(
    state_a: State, state_b: State, precision: Precision, *, relative_to_lse: bool = False
) -> tuple[RoundingError, RoundingError]:
    """Errors of o and lse of whoever merges with a precision, before anything is stored.

    Math: a weight exp(lse_s - m) / sum exp(lse_r - m) is off by the rounding of the difference, of
    its conversion to base 2 (constant and product) and of the exponentials. LSE of the parts are
    exact, whatever their size: so are near ones' differences. A weight exp(lse_s - L) is off by the
    error of L, too. Who interpolates, o_a - w (o_a - o_b) with w = sigmoid(lse_b - lse_a) as ring
    attention does, rounds the difference and w times it relative to both parts whatever their
    weights: (FUNCTION_UNITS + 4) u |o_a - o_b| more, where neither part is empty.

    Args:
        relative_to_lse: whether weights are exp(lse_s - L), without a division.
    """
    (o, lse), u = merge(*state_a, *state_b), precision.unit
    known = lse.nan_to_num(neginf=0.0)
    near = torch.maximum(*(x[1].double().nan_to_num(neginf=0.0).abs() for x in (state_a, state_b)))
    log_bound = u * (2 * FUNCTION_UNITS + 4 * torch.maximum(known.abs(), near))
    log_error = RoundingError(log_bound, log_bound.square() / 12, u * FUNCTION_UNITS + 0 * known)
    size, gap = torch.zeros_like(o), torch.zeros_like(known)
    for part, own in (state_a, state_b):
        w = _weight(own.double(), lse)
        size = size + torch.where(w > 0, w, 0.0)[..., None] * part.double().abs().nan_to_num()
        # Differences beyond the range of exp have weight 0.
        gap = torch.maximum(gap, (own.double() - lse).abs().nan_to_num(posinf=0.0).clamp(max=750))
    weights = log_bound + u * gap if relative_to_lse else u * (3 * gap + 2 * FUNCTION_UNITS)
    relative = weights + u * (2 * FUNCTION_UNITS + 4)
    between = u * (FUNCTION_UNITS + 4) * _between(state_a, state_b)
    bound = torch.expm1(relative)[..., None] * size + between + precision.vanishing * (size > 0)
    error = RoundingError(bound, bound.square() / 12, bound / 2)
    return error, log_error.mapped(lambda x: x.masked_fill(torch.isneginf(lse), 0.0))


def _between(state_a: State, state_b: State) -> Tensor:
    """|o_a - o_b|; 0 where a part is empty, which holds whatever it holds."""
    (o_a, lse_a), (o_b, lse_b) = state_a, state_b
    empty = (torch.isneginf(lse_a) | torch.isneginf(lse_b))[..., None]
    return (o_a.double() - o_b.double()).abs().masked_fill(empty, 0.0)


def partial_states(segment: Segment, parts: Iterable[Tensor]) -> Iterator[State]:
    """The state over each part of the keys, by indices or masks, in float64."""
    for keys in parts:
        found = attend(segment.over(keys))
        yield found.o.high, found.lse.high


def combined(states: Iterable[State]) -> State:
    """All states merged, in order."""
    return reduce(lambda a, b: merge(*a, *b), states)


@dataclass(frozen=True)
class Cut:
    """Consecutive blocks of a request that one part of the schedule works on.

    Args:
        request: its number; first, last: blocks, last excluded; whole: whether it is not split.
    """

    request: int
    first: int
    last: int
    whole: bool = True


@dataclass(frozen=True)
class Schedule:
    """Who works on which blocks.

    Args:
        parts: what each of the parts works on, in order.
        num_splits: [requests + 1] exclusive sums of the splits of every request.
    """

    parts: tuple[tuple[Cut, ...], ...]
    num_splits: tuple[int, ...]


def schedule(lengths: Sequence[int], *, sms: int, s_q: int, H: int, h_kv: int) -> Schedule:
    """The greedy schedule of a Hopper MLA decode, as integers.

    Math: blocks_i = ceil(max(s_k_i, 1) / 64), parts = max(sms / h_kv / ceil(s_q H / h_kv / 64), 1),
    payload = ceil(sum (blocks_i + 5) / parts) + 5; requests are walked in order, a part is filled
    up to its payload, 5 a request being overhead, and a request is cut where a part is full.
    Source: mla.md 1.4.
    """
    blocks = [-(-max(n, 1) // KEYS) for n in lengths]
    count = max(sms // h_kv // -(-(s_q * H // h_kv) // KEYS), 1)
    payload = -(-sum(n + OVERHEAD for n in blocks) // count) + OVERHEAD
    parts, request, first = list[tuple[Cut, ...]](), 0, 0
    for _ in range(count):
        cuts, left = list[Cut](), payload
        while request < len(blocks):
            remaining = blocks[request] - first
            if left >= remaining + OVERHEAD:
                cuts.append(Cut(request, first, blocks[request]))
                left, request, first = left - remaining - OVERHEAD, request + 1, 0
            else:
                if left > OVERHEAD:
                    taken = left - OVERHEAD
                    cuts.append(Cut(request, first, first + taken))
                    first += taken
                break
        parts.append(tuple(cuts))
    counts = [sum(cut.request == n for part in parts for cut in part) for n in range(len(blocks))]
    named = tuple(
        tuple(replace(cut, whole=counts[cut.request] == 1) for cut in part) for part in parts
    )
    return Schedule(named, tuple(itertools.accumulate(counts, initial=0)))
