"""Laws of attention over dense keys."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.outcome import Outcome, placed, rejected, skipped
from kdaverify.operators.attention.laws.backward import BACKWARD_LAWS
from kdaverify.operators.attention.laws.bounded import (
    attention_law,
    bounds,
    same_but_lse,
    sinkless,
    summed,
    whole_of_parts,
    within,
)
from kdaverify.operators.attention.laws.sinks import DENSE_SINK_LAWS
from kdaverify.operators.attention.problem import FINITE
from kdaverify.operators.attention.unused import MEND, declares_finite
from kdaverify.operators.relations import Tensors, exactly, run, same
from oracles.attention.calls import AttentionCall

POWER: Final = 2.0**4
BATCH: Final[dict[str, Any]] = {"q_lengths": None, "k_lengths": None}


def batched(problem: Any) -> str | None:
    return "it needs a batch" if problem.packed else None


def _unmasked(problem: Any) -> str | None:
    return "it needs every key visible" if problem.causal else batched(problem)


def _several_keys(problem: Any) -> str | None:
    return _unmasked(problem) or (None if problem.s_k > 1 else "it needs two keys")


def _only(found: Tensors, name: str) -> Tensors:
    return {name: found[name]} if name in found else {}


def _keys(call: AttentionCall, keys: Tensor | slice) -> AttentionCall:
    return replace(call, k=call.k[:, keys].contiguous(), v=call.v[:, keys].contiguous())


def _halves(problem: Any) -> tuple[Any, ...]:
    at = max(problem.s_k // 2, 1)
    return problem.replace(s_k=at), problem.replace(s_k=max(problem.s_k - at, 1))


def _concatenated(adapter: Adapter, problem: Any) -> list[Outcome]:
    if "lse" not in adapter.exposes(problem):
        return skipped("it returns no LSE")
    call, at = problem.inputs(), problem.s_k // 2
    parts = [_keys(call, part) for part in (slice(at), slice(at, None))]
    said = f"with the merge of two calls cut at key {at}"
    return whole_of_parts(adapter, problem, call, parts, said)


def _duplicated(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    twice = replace(call, k=torch.cat((call.k,) * 2, 1), v=torch.cat((call.v,) * 2, 1))
    return same_but_lse(adapter, problem, call, twice, "with every key twice", more=math.log(2))


def _permuted(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    other = _keys(call, torch.arange(problem.s_k).flip(0))
    plain, found = run(adapter, problem, call), run(adapter, problem, other)
    allowed = summed(*(bounds(adapter, problem, one) for one in (call, other)))
    return within(call, found, plain, allowed, "with the keys in reverse")


def _shifted(adapter: Adapter, problem: Any) -> list[Outcome]:
    """One column of every key, 0 first, becomes 4."""
    call = problem.inputs()
    keys = [call.k.clone() for _ in range(2)]
    for k, number in zip(keys, (0.0, 4.0), strict=True):
        k[..., 0] = number
    before, after = (replace(call, k=k) for k in keys)
    moved = 4 * call.softmax_scale * call.q[..., 0].double().transpose(1, 2)
    more, said = moved.masked_fill(call.empty[:, None], 0.0), "with a constant added to all keys"
    return same_but_lse(adapter, problem, before, after, said, more=more)


def _scaled_values(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    other = replace(call, v=-POWER * call.v)
    plain, found = run(adapter, problem, call), run(adapter, problem, other)
    wanted = {"o": -POWER * plain["o"].double(), **_only(plain, "lse")}
    return exactly(other, found, wanted)


def _moved_power(adapter: Adapter, problem: Any) -> list[Outcome]:
    """Of keys that are still exact a power lower: one below 2^-10 in fp16 would not be, and a right
    port was rejected for a bit of LSE.
    """
    call = problem.inputs()
    lower = call.k / POWER
    call = replace(call, k=POWER * lower)
    other = replace(call, q=POWER * call.q, k=lower)
    return exactly(other, run(adapter, problem, other), run(adapter, problem, call))


def _convex(adapter: Adapter, problem: Any) -> list[Outcome]:
    """o of each row between the least and the largest visible value of its column."""
    call, found = problem.inputs(), run(adapter, problem, problem.inputs())
    low, high = list[Tensor](), list[Tensor]()
    for segment in call.segments():
        seen, v = segment.visible[None, ..., None], segment.of_heads(segment.v.double())[:, None]
        empty = segment.empty[None, :, None]
        ends = (v.masked_fill(~seen, torch.inf), v.masked_fill(~seen, -torch.inf))
        wide = v.new_zeros(v.shape[0], segment.visible.shape[0], 1, v.shape[3])
        low.append(torch.cat((ends[0], wide + torch.inf), 2).amin(2).masked_fill(empty, 0.0))
        high.append(torch.cat((ends[1], wide - torch.inf), 2).amax(2).masked_fill(empty, 0.0))
    ends = [call.joined("o", part) for part in (low, high)]
    wanted = {"o": found["o"].double().clamp(*ends)}
    return within(call, found, wanted, bounds(adapter, problem, call), "with its values' range")


def _one_key(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = _keys(problem.inputs(), slice(1))
    found, group = run(adapter, problem, call), problem.H // problem.h_kv
    k, v = (x.double().repeat_interleave(group, 2) for x in (call.k, call.v))
    logits = call.softmax_scale * (call.q.double() * k).sum(-1).transpose(1, 2)
    wanted = {"o": v.expand(found["o"].shape), "lse": logits}
    allowed = bounds(adapter, problem, call)
    return within(call, found, wanted, allowed, "with the value and the logit of the only key")


def _no_queries(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    call = replace(call, q=torch.zeros_like(call.q))
    found, group = run(adapter, problem, call), problem.H // problem.h_kv
    mean = call.v.double().repeat_interleave(group, 2).mean(1, keepdim=True)
    level = torch.tensor(math.log(problem.s_k), dtype=torch.float64)
    shape = (problem.B, problem.H, problem.s_q)
    wanted = {"o": mean.expand(found["o"].shape), "lse": level.expand(shape)}
    return within(call, found, wanted, bounds(adapter, problem, call), "with the mean and ln n")


def _subset(adapter: Adapter, problem: Any) -> list[Outcome]:
    """The last key head with its query heads, alone."""
    call, group = problem.inputs(), problem.H // problem.h_kv
    alone = replace(
        call,
        q=call.q[:, :, -group:].contiguous(),
        k=call.k[:, :, -1:].contiguous(),
        v=call.v[:, :, -1:].contiguous(),
        sink=None if call.sink is None else call.sink[-group:].contiguous(),
    )
    plain, found = run(adapter, problem, call), run(adapter, problem, alone)
    cut = {
        name: (x[:, -group:] if name == "lse" else x[:, :, -group:]) for name, x in plain.items()
    }
    return same(adapter, alone, found, cut, "for the heads of one key head alone")


def _repeated(adapter: Adapter, problem: Any) -> list[Outcome]:
    call, group = problem.inputs(), problem.H // problem.h_kv
    k, v = (x.repeat_interleave(group, 2) for x in (call.k, call.v))
    other = replace(call, k=k, v=v)
    found = run(adapter, problem, other)
    return same(adapter, call, found, run(adapter, problem, call), "with key heads repeated")


def _border(adapter: Adapter, problem: Any) -> list[Outcome]:
    """The last key replaced: no row but the last sees it."""
    call = problem.inputs()
    k, v = call.k.clone(), call.v.clone()
    k[:, -1], v[:, -1] = 1 - 3 * k[:, -1], 1 - 3 * v[:, -1]
    plain, found = run(adapter, problem, call), run(adapter, problem, replace(call, k=k, v=v))
    mixed = {
        name: torch.cat(
            (found[name].narrow(axis, 0, problem.s_q - 1), x.narrow(axis, problem.s_q - 1, 1)), axis
        )
        for name, x, axis in ((n, x, 2 if n == "lse" else 1) for n, x in plain.items())
    }
    return same(adapter, call, mixed, plain, "with a key behind the border replaced")


def _single_query(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    other = run(adapter, problem, replace(call, causal=False))
    return same(adapter, call, other, run(adapter, problem, call), "causal and not, of one query")


def _singles(adapter: Adapter, problem: Any) -> list[Outcome]:
    """Every request of a pack, in a pack of its own."""
    call = problem.inputs()
    plain, parts = run(adapter, problem, call), list[Tensors]()
    kept = [at for at in call.requests if at.s_q]
    for at in kept:
        offsets = [torch.tensor([0, n], dtype=torch.int32) for n in (at.s_q, max(at.s_k, 0))]
        keys = at.keys if at.s_k else slice(1)
        alone = replace(
            call,
            q=call.q[:, at.rows].contiguous(),
            k=call.k[:, keys].contiguous(),
            v=call.v[:, keys].contiguous(),
            cu_seqlens_q=offsets[0],
            cu_seqlens_k=offsets[1],
        )
        parts.append(run(adapter, problem, alone))
    found = {name: torch.zeros_like(x) for name, x in plain.items()}
    for at, part in zip(kept, parts, strict=True):
        for name, x in part.items():
            target = found[name].transpose(1, 2) if name == "lse" else found[name]
            target[:, at.rows] = x.transpose(1, 2) if name == "lse" else x
    return same(adapter, call, found, plain, "for every request alone")


LAST: Final = (2, 3)
"""Queries and keys of a request that no tile in use ends with."""
SPARE: Final = 17
"""Rows behind it: more than a small tile, so that a kernel that reads whole tiles reads some."""


def _with_rows_of_nobody(problem: Any) -> Any:
    """The pack with one more request, and rows behind it that are nobody's."""
    q, k = zip(*problem.pairs, LAST, strict=True)
    return problem.replace(q_lengths=q, k_lengths=k, s_q=sum(q) + SPARE, s_k=sum(k) + SPARE)


def _poisoned(adapter: Adapter, given: Any) -> list[Outcome]:
    problem = _with_rows_of_nobody(given)
    if declares_finite(adapter):
        return _filled(adapter, problem, FINITE)
    found = _filled(adapter, problem, torch.nan)
    if not rejected(found) or rejected(_filled(adapter, problem, FINITE)):
        return found
    return placed(found, f"\n  {ROWS}; {MEND}")


def _filled(adapter: Adapter, problem: Any, number: float) -> list[Outcome]:
    """Results with a number in rows of nobody are those without."""
    call = problem.inputs()
    q_rows, k_rows = (sum(lengths) for lengths in zip(*problem.pairs, strict=True))
    tensors = {name: getattr(call, name).clone() for name in ("q", "k", "v")}
    for name, x in tensors.items():
        x[:, q_rows if name == "q" else k_rows :] = number
    found = run(adapter, problem, replace(call, **tensors))
    said = f"with {number:g} in rows of nobody"
    return same(adapter, call, found, run(adapter, problem, call), said)


ROWS: Final = (
    "rows past the last offset may hold NaN; with finite numbers there the kernel is right"
)
ALL_KEYS: Final[dict[str, Any]] = {**BATCH, "causal": False}
_CHECKS: Final = (
    attention_law(
        "values-by-powers-of-two",
        "v times -2^4 gives o times -2^4, exactly, and the same LSE",
        "clamps, descale of V (Q2), narrow sums",
        _scaled_values,
        untestable=lambda problem: (
            None if problem.value == "normal" else "it needs ordinary values"
        ),
        value="normal",
    ),
    attention_law(
        "moved-power",
        "q times 2^4 and k by 2^4 change no bit",
        "scales applied to one operand alone",
        _moved_power,
        untestable=lambda problem: (
            None if problem.logits == "normal" else "it needs ordinary logits"
        ),
        logits="normal",
    ),
    sinkless("concatenation",
             "attention over all keys is the merge of two calls over parts of them",
             "LSE that is not that of o (C5, C11, C12, S1)", _concatenated,
             untestable=_several_keys, becomes=_halves, **ALL_KEYS),
    sinkless("duplicated-keys", "every key twice adds ln 2 to LSE, and leaves o",
             "tails of keys, masks of padding (W3)", _duplicated, untestable=_unmasked,
             becomes=lambda problem: (problem.replace(s_k=2 * problem.s_k),), **ALL_KEYS),
    attention_law("permuted-keys", "the order of keys changes nothing without a mask",
                  "maxima of the first tile only, rescaling", _permuted, untestable=_unmasked,
                  **ALL_KEYS),
    sinkless("shifted-keys", "a constant added to all keys leaves o, and adds c <q, a> to LSE",
             "K centred without compensation (C12), sentinels (S4)", _shifted, untestable=batched,
             **BATCH),
    sinkless("convexity", "o lies between the least and the largest value that its row sees",
             "weights that do not sum to 1, keys behind the mask", _convex),
    sinkless("one-key", "over one key o is its value, and LSE its logit",
             "scales (S1 to S3), offsets of V", _one_key, untestable=_unmasked,
             becomes=lambda problem: (problem.replace(s_k=1),), **ALL_KEYS),
    sinkless("no-queries", "for q = 0, o is the mean of the values and LSE is ln n",
             "padding that counts as keys, counts of keys", _no_queries, untestable=_unmasked,
             **ALL_KEYS),
    attention_law("heads-alone", "the heads of one key head have the results that they have alone",
                  "maps of heads (G12, G13)", _subset, untestable=batched,
                  becomes=lambda problem: (problem.replace(H=problem.H // problem.h_kv, h_kv=1),),
                  **BATCH),
    attention_law("repeated-key-heads", "key heads repeated for every query head give the same",
                  "maps of heads (G12, G13)", _repeated, untestable=batched,
                  becomes=lambda problem: (problem.replace(h_kv=problem.H),), **BATCH),
    attention_law(
        "behind-the-border",
        "the last key changes no row but the last under a causal mask",
        "another alignment of the border (M1), flags without effect (M4)",
        _border,
        untestable=lambda problem: (
            batched(problem) or (None if problem.causal else "it needs a mask")
        ),
        causal=True,
        **BATCH,
    ),
    attention_law(
        "single-query",
        "causal or not is the same for one query",
        "another alignment of the border (M1)",
        _single_query,
        untestable=lambda problem: (
            batched(problem)
            or (None if problem.causal and problem.s_q == 1 else "it needs one query, causal")
        ),
        becomes=lambda problem: (problem.replace(causal=False),),
        s_q=1,
        causal=True,
        **BATCH,
    ),
    attention_law("requests-alone", "requests of a pack have the results that they have alone",
                  "offsets, neighbours, captured boundaries (W1, W3)", _singles,
                  untestable=lambda problem: None if problem.packed else "it needs a pack"),
    attention_law("rows-of-nobody", "NaN in rows past the last offset changes nothing",
                  "tails of tiles read (B4, M6)", _poisoned,
                  untestable=lambda problem: None if problem.packed else "it needs a pack",
                  becomes=lambda problem: (_with_rows_of_nobody(problem),)),
)  # fmt: skip
DENSE_LAWS: Final = {law.name: law for law in (*_CHECKS, *DENSE_SINK_LAWS, *BACKWARD_LAWS)}
