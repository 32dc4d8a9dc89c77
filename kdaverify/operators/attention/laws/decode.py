"""Laws of decode over a paged cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.checks.status import Status
from kdaverify.operators.attention.laws.bounded import (
    attention_law,
    heads_reversed,
    same_bits,
    same_but_lse,
    sinkless,
    whole_of_parts,
)
from kdaverify.operators.attention.laws.sinks import SINK_LAWS
from kdaverify.operators.attention.problem import FINITE
from kdaverify.operators.attention.unused import refilled
from kdaverify.operators.relations import Tensors, run, same
from oracles.attention.calls import MlaDecodeCall

POISON: Final = 1.0e4
"""Finite, and larger than any row in use: a kernel that multiplies it by 0 hides it."""
OTHER_GARBAGE: Final = -1


def _pages(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    count = len(call.cache)
    order = torch.arange(count).flip(0).roll(1)
    where = torch.empty_like(order)
    where[order] = torch.arange(count)
    inside = (call.block_table >= 0) & (call.block_table < count)
    table = torch.where(
        inside, where[call.block_table.clamp(0, count - 1).long()], call.block_table
    )
    other = replace(call, cache=call.cache[order].contiguous(), block_table=table.to(torch.int32))
    return same_bits(adapter, problem, call, other, "with pages elsewhere")


def _poisoned(adapter: Adapter, problem: Any) -> list[Outcome]:
    """Slots that no token lies in hold other numbers."""
    call = problem.inputs()
    other = refilled(call, -FINITE if problem.unused == "finite" else POISON)
    return same_bits(adapter, problem, call, other, "with other numbers in unused slots")


def _longer_table(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    used = -(-call.cache_seqlens.long() // problem.page)
    table = torch.nn.functional.pad(call.block_table, (0, 3), value=OTHER_GARBAGE)
    unused = torch.arange(table.shape[1]) >= used[:, None]
    other = replace(call, block_table=table.masked_fill(unused, OTHER_GARBAGE))
    # a kernel that gathers whole tables multiplies matrices of other shapes
    plain, found = run(adapter, problem, call), run(adapter, problem, other)
    return same(adapter, call, found, plain, "with a longer table of other garbage")


def _reversed(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    turned = {name: getattr(call, name).flip(0) for name in ("q", "block_table", "cache_seqlens")}
    found = {name: x.flip(0) for name, x in run(adapter, problem, replace(call, **turned)).items()}
    return same(adapter, call, found, run(adapter, problem, call), "with requests in reverse")


def _part(call: MlaDecodeCall, which: slice) -> MlaDecodeCall:
    names = ("q", "block_table", "cache_seqlens")
    return replace(call, **{name: getattr(call, name)[which].contiguous() for name in names})


def _alone(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    parts = [run(adapter, problem, _part(call, slice(b, b + 1))) for b in range(problem.B)]
    found = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    return same(adapter, call, found, run(adapter, problem, call), "for every request alone")


def _each_query(adapter: Adapter, problem: Any) -> list[Outcome]:
    """Query i of s_q sees s_k - s_q + 1 + i keys, as it does alone with that length."""
    call, s_q = problem.inputs(), problem.s_q
    parts = list[Tensors]()
    for i in range(s_q):
        lengths = (call.cache_seqlens - s_q + 1 + i).clamp(min=0)
        alone = replace(call, q=call.q[:, i : i + 1].contiguous(), cache_seqlens=lengths)
        parts.append(run(adapter, problem, alone))
    found = {
        name: torch.cat([part[name] for part in parts], 2 if name == "lse" else 1)
        for name in parts[0]
    }
    return same(adapter, call, found, run(adapter, problem, call), "for every query alone")


def _parts(call: MlaDecodeCall, page: int) -> tuple[MlaDecodeCall, MlaDecodeCall]:
    """The first half of every request's pages, and the rest."""
    pages = -(-call.cache_seqlens // page) // 2
    first = replace(call, cache_seqlens=torch.minimum(pages * page, call.cache_seqlens))
    width = call.block_table.shape[1]
    shifted = (torch.arange(width) + pages[:, None]).clamp(max=width - 1).long()
    table = call.block_table.gather(1, shifted)
    rest = replace(call, block_table=table, cache_seqlens=call.cache_seqlens - first.cache_seqlens)
    return first, rest


def _merged(adapter: Adapter, problem: Any) -> list[Outcome]:
    if "lse" not in adapter.exposes(problem):
        return skipped("it returns no LSE")
    call = problem.inputs()
    parts = _parts(call, problem.page)
    said = "with the merge of two calls over parts of the pages"
    return whole_of_parts(adapter, problem, call, parts, said)


def _shifted(adapter: Adapter, problem: Any) -> list[Outcome]:
    """The last column, which is no value, moved by a constant: o stays, LSE moves by c q 4."""
    call = problem.inputs()
    caches = list[Tensor]()
    for number in (0.0, 4.0):
        cache = call.cache.clone()
        cache[..., -1] = torch.where(cache[..., -1].isnan(), torch.nan, number)
        caches.append(cache)
    before, after = (replace(call, cache=cache) for cache in caches)
    moved = 4 * call.softmax_scale * call.q[..., -1].double().transpose(1, 2)
    more, said = moved.masked_fill(call.empty[:, None], 0.0), "with a constant added to all keys"
    return same_but_lse(adapter, problem, before, after, said, more=more)


def _not_a_number(adapter: Adapter, problem: Any) -> list[Outcome]:
    """The first token of a request is NaN: it shows in its queries, and in no request without the
    page.
    """
    call = problem.inputs()
    request = next((b for b, length in enumerate(problem.k_lengths) if length > 1), None)
    if request is None:
        return skipped("no request has two tokens")
    page, used = call.block_table[request, 0], -(-call.cache_seqlens.long() // problem.page)
    columns = torch.arange(call.block_table.shape[1]) < used[:, None]
    hit = ((call.block_table == page) & columns).any(-1)
    cache = call.cache.clone()
    cache[int(page), 0] = torch.nan
    plain, found = (run(adapter, problem, x) for x in (call, replace(call, cache=cache)))
    kept = {
        name: torch.where(hit.view(-1, *[1] * (x.ndim - 1)), plain[name], x)
        for name, x in found.items()
    }
    others = same(adapter, call, kept, plain, "where a token of other requests is NaN")
    rows = found["o"][request][~call.empty[request]]
    # as of no keys: kernels guard those by a sum above 0, and a sum of NaN is not above 0
    hidden = ~rows.isnan() & (rows != 0).any(-1, keepdim=True)
    if not bool(hidden.any()):
        return others
    message = (
        f"o: the first token of request {request} is NaN, and {int(hidden.sum())} elements of its"
        " queries hide it, wanted NaN, or a row of 0"
    )
    return [*others, Outcome("o", Status.FAIL, message)]


_CHECKS: Final = (
    attention_law("pages-elsewhere", "pages moved, and the table with them, change no bit",
                  "pages read as if contiguous, offsets in a page (G1, G3, G9)", _pages),
    attention_law("unused-slots", "numbers in slots that no token lies in change no bit",
                  "masked keys times 0, scratch, neighbours (M6, C1)", _poisoned),
    attention_law("longer-table",
                  "a longer table, and other garbage behind the final page, change nothing",
                  "tables padded for another batch (G7, W3)", _longer_table),
    attention_law("requests-reversed", "requests in another order have the same results",
                  "tables and lengths of another request (M10, G8)", _reversed),
    attention_law(
        "requests-alone",
        "requests have the results that they have alone",
        "schedules, scratch shared among requests (K1, C6)",
        _alone,
        becomes=lambda problem: tuple(problem.replace(k_lengths=(n,)) for n in problem.k_lengths),
    ),
    attention_law("queries-alone",
                  "queries of a causal call have the results that each has alone with its length",
                  "borders of several queries in one tile (M10, M11)", _each_query,
                  untestable=lambda problem: None if problem.causal else "it needs a mask",
                  becomes=lambda problem: (problem.replace(s_q=1),), causal=True),
    attention_law("heads-reversed", "heads in another order have the same results",
                  "maps of heads, padding of heads (G12, G13)", heads_reversed),
    sinkless("concatenation",
             "attention over a cache is the merge of two calls over parts of its pages",
             "LSE that is not that of o (C5, C6, C8, C9)", _merged,
             untestable=lambda problem: "it needs every key visible" if problem.causal else None,
             causal=False),
    sinkless("shifted-keys",
             "a constant added to a column of all keys leaves o, and adds c q a to LSE",
             "columns of K past those of V dropped, sentinels (S4, C12)", _shifted),
    attention_law("nan-shows",
                  "a token that is NaN makes o of the queries that see it NaN or 0, and no other",
                  "values cleared, or clamped, where they are NaN", _not_a_number),
)  # fmt: skip
DECODE_LAWS: Final = {law.name: law for law in (*_CHECKS, *SINK_LAWS)}
