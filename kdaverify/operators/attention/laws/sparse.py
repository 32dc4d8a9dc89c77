"""Laws of attention over lists of cache slots."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.checks.place import first_true, place
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
from kdaverify.operators.relations import run, same
from oracles.attention.fp8 import as_bytes, of_bytes
from oracles.attention.sparse import SparseCall

NAN_CODE: Final = 0x7F
MORE: Final = 67
"""Entries that name nothing behind a list: more than a tile."""


def _named(call: SparseCall) -> Tensor:
    """[slots] Those in some list."""
    found = torch.zeros(call.cache.shape[0] * call.cache.shape[1], dtype=torch.bool)
    found[call.indices[_slots(call)].long()] = True
    return found


def _slots(call: SparseCall) -> Tensor:
    """[B, s_q, topk] Entries that are slots, whether they count or not."""
    return replace(call, topk_length=None).seen


def _with_slots(call: SparseCall, slots: Tensor) -> SparseCall:
    return replace(call, cache=slots.unflatten(0, call.cache.shape[:2]))


def _unnamed(adapter: Adapter, problem: Any) -> list[Outcome]:
    """Slots in no list hold the row of one that is in a list."""
    call = problem.inputs()
    named, slots = _named(call), call.cache.flatten(0, 1)
    if not bool(named.any()):
        return skipped("no list names a slot")
    copied = torch.where(named.view(-1, 1, 1), slots, slots[named][:1])
    other = _with_slots(call, copied)
    return same_bits(adapter, problem, call, other, "with other rows in slots that no list names")


def _elsewhere(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    slots = call.cache.flatten(0, 1)
    order = torch.arange(len(slots)).flip(0).roll(1)
    where = torch.empty_like(order)
    where[order] = torch.arange(len(slots))
    inside = _slots(call)
    moved = where[call.indices.masked_fill(~inside, 0).long()].to(torch.int32)
    indices = torch.where(inside, moved, call.indices)
    other = replace(_with_slots(call, slots[order].contiguous()), indices=indices)
    # a kernel that goes through all slots, and counts how often a list names each, adds up in the
    # order of slots
    plain, found = run(adapter, problem, call), run(adapter, problem, other)
    return same(adapter, call, found, plain, "with rows in other slots")


def _reversed(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    found = run(adapter, problem, replace(call, indices=call.indices.flip(2).contiguous()))
    return same(adapter, call, found, run(adapter, problem, call), "with lists in reverse")


def _longer(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    longer = torch.nn.functional.pad(call.indices, (0, MORE), value=-1)
    found = run(adapter, problem, replace(call, indices=longer))
    plain = run(adapter, problem, call)
    return same(adapter, call, found, plain, "with entries that name nothing behind each list")


def _lengths(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    half = (torch.arange(problem.B) + 1) * problem.topk // (problem.B + 1)
    short = replace(call, topk_length=half.int())
    counted = torch.arange(problem.topk) < half[:, None, None]
    other = replace(call, indices=call.indices.masked_fill(~counted, -1))
    found, plain = run(adapter, problem, short), run(adapter, problem, other)
    return same(adapter, short, found, plain, "with entries that name nothing past topk_length")


def _each_query(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    parts = [
        run(adapter, problem, _one(call, b, i))
        for b in range(problem.B)
        for i in range(problem.s_q)
    ]
    joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    found = {
        name: (x.unflatten(0, call.indices.shape[:2]).squeeze(3 if name == "lse" else 2))
        for name, x in joined.items()
    }
    found = {name: x.transpose(1, 2) if name == "lse" else x for name, x in found.items()}
    return same(adapter, call, found, run(adapter, problem, call), "for every query alone")


def _one(call: SparseCall, b: int, i: int) -> SparseCall:
    of_query = {name: getattr(call, name)[b : b + 1, i : i + 1] for name in ("q", "indices")}
    length = None if call.topk_length is None else call.topk_length[b : b + 1].contiguous()
    return replace(
        call, **{name: x.contiguous() for name, x in of_query.items()}, topk_length=length
    )


def _doubled(adapter: Adapter, problem: Any) -> list[Outcome]:
    """Every list twice: o stays, LSE rises by ln 2."""
    call = problem.inputs()
    twice = replace(call, indices=torch.cat((call.indices, call.indices), 2))
    more = (~call.empty[:, None]).double() * math.log(2)
    return same_but_lse(adapter, problem, call, twice, "with every list twice", more=more)


def _merged(adapter: Adapter, problem: Any) -> list[Outcome]:
    if "lse" not in adapter.exposes(problem):
        return skipped("it returns no LSE")
    call, half = problem.inputs(), problem.topk // 2
    # the entry at the cut is in both parts: it counts twice in the whole
    lists = [call.indices[:, :, : half + 1], call.indices[:, :, half:]]
    both = replace(call, indices=torch.cat(lists, 2))
    parts = [replace(call, indices=x.contiguous()) for x in lists]
    said = "with the merge of two calls over parts of lists"
    return whole_of_parts(adapter, problem, both, parts, said)


def _not_a_number(adapter: Adapter, problem: Any) -> list[Outcome]:
    """The row of one slot is NaN: it shows in the queries that name it, and in no other."""
    call = problem.inputs()
    slot = _beside_others(call)
    if slot is None:
        return skipped("no query names two slots")
    slots = call.cache.flatten(0, 1).clone()
    slots[slot] = _nan_row(slots[slot], call.d_v)
    plain, found = run(adapter, problem, call), run(adapter, problem, _with_slots(call, slots))
    hit = ((call.indices == slot) & call.seen).any(-1)
    # a kernel that multiplies slots by 0 where a query does not name them declares it
    free = torch.ones_like(hit) if problem.unused == "finite" else hit
    kept = {
        name: torch.where(
            free[:, None] if name == "lse" else free[..., None, None], plain[name], found[name]
        )
        for name in plain
    }
    hidden = _hides(found["o"]) & hit[..., None, None]
    others = same(adapter, call, kept, plain, f"where slot {slot} is NaN and not in the list")
    if not bool(hidden.any()):
        return others
    at = first_true(hidden)
    message = (
        f"o: slot {slot} is NaN, and {int(hidden.sum())} elements of o of queries that name it hide"
        f" it\n  first at {place('o', at, hidden.shape, call)}\n  got"
        f" {float(found['o'].flatten()[at]):.9g}, wanted NaN, or a row of 0"
    )
    return [*others, Outcome("o", Status.FAIL, message)]


def _beside_others(call: SparseCall) -> int | None:
    """A slot whose query names another too: without it o is a number that is not 0."""
    for entries, seen in zip(call.indices.flatten(0, 1), call.seen.flatten(0, 1), strict=True):
        named = entries[seen]
        if bool((named != named[:1]).any()):
            return int(named[0])
    return None


def _hides(o: Tensor) -> Tensor:
    """[B, s_q, H, d_v] Elements that are numbers, of rows that are not 0 throughout.

    Kernels guard against rows without keys by a sum above 0. A sum of NaN is not above 0 either:
    the row is that of no keys.
    """
    return ~o.isnan() & (o != 0).any(-1, keepdim=True)


def _nan_row(row: Tensor, d_v: int) -> Tensor:
    """NaN in all that is value; of a quantised row in the codes alone, its scales are numbers."""
    if row.dtype is not torch.uint8:
        return torch.full_like(row, torch.nan)
    parts = of_bytes(row, d_v)
    return as_bytes(replace(parts, codes=torch.full_like(parts.codes, NAN_CODE)))


def _takes_lengths(problem: Any) -> str | None:
    return None if problem.topk_lengths is None else "its lists have lengths"


_CHECKS: Final = (
    attention_law("unnamed-slots", "other rows in slots that no list names change no bit",
                  "index -1 read as a slot, masked keys times 0 (K2)", _unnamed),
    attention_law("slots-elsewhere",
                  "rows moved to other slots, and the lists with them, have the same results",
                  "offsets of pages dropped, strides of a cache (G1, G3, K7)", _elsewhere),
    attention_law("lists-reversed", "lists in reverse have the same results",
                  "the first tile without a key, the final one dropped (S6)", _reversed,
                  untestable=_takes_lengths, topk_lengths=None),
    attention_law("longer-lists", "entries that name nothing behind the lists change nothing",
                  "entries that name nothing counted in the sum", _longer,
                  becomes=lambda problem: (problem.replace(topk=problem.topk + MORE),)),
    attention_law(
        "leading-entries",
        "topk_length is a list that names nothing behind it",
        "lengths of another request, ignored lengths",
        _lengths,
        becomes=lambda problem: (problem.replace(topk_lengths=(problem.topk,) * problem.B),),
    ),
    attention_law("queries-alone", "queries have the results that they have alone",
                  "lists of another query, state from one query to the next (K1, K7)", _each_query,
                  becomes=lambda problem: (problem.replace(B=1, s_q=1, topk_lengths=None),)),
    attention_law("heads-reversed", "heads in another order have the same results",
                  "maps of heads, padding of heads (G12, G13)", heads_reversed),
    sinkless("lists-twice", "with every list twice o is the same, and LSE rises by ln 2",
             "an index that occurs twice counted once", _doubled,
             becomes=lambda problem: (problem.replace(topk=2 * problem.topk),),
             untestable=_takes_lengths, topk_lengths=None),
    sinkless("concatenation", "attention over a list is the merge of two calls over parts of it",
             "LSE that is not that of o, tails of lists dropped", _merged,
             untestable=_takes_lengths, topk_lengths=None),
    attention_law("nan-shows",
                  "a slot that is NaN makes o of the queries that name it NaN or 0, and no other",
                  "code 0x7f of a quantised cache read as a number, slots of NaN skipped",
                  _not_a_number, topk=9, topk_lengths=None),
)  # fmt: skip
SPARSE_LAWS: Final = {law.name: law for law in (*_CHECKS, *SINK_LAWS)}
