"""Laws of attention with a sink, over dense keys and over a cache."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.operators.attention.laws.bounded import attention_law, bounds, summed, within
from kdaverify.operators.relations import Tensors, run, same

SCALE: Final = 0.25
"""A power of two: a key that is its inverse has the sink as its score, exactly."""


def _without(call: Any) -> Any:
    """The call with sinks of -inf, which every function that takes one can be given."""
    return replace(call, sink=torch.full_like(call.sink, -torch.inf))


def _unsunk(adapter: Adapter, problem: Any) -> list[Outcome]:
    if adapter.takes is not None and adapter.takes.words["sink"] == "required":
        return skipped("it has to be given a sink")
    call = problem.inputs()
    plain = run(adapter, problem, replace(call, sink=None, lse_includes_sink=False))
    found = run(adapter, problem, _without(call))
    return same(adapter, _without(call), found, plain, "with a sink of -inf and with none")


def _factor(lse: Tensor, call: Any, *, sign: float = 1.0) -> Tensor:
    """[B, s_q, H, 1] sigma(LSE - a), or 1 less it; 0 in rows without keys."""
    gap = lse.double() - call.sink.double()[:, None]
    return (sign * gap).sigmoid().masked_fill(call.empty[:, None], 0.0).transpose(1, 2)[..., None]


def _multiplied(adapter: Adapter, problem: Any) -> list[Outcome]:
    """Math: |df| <= f (1 - f) (exp(e) - 1), e the error of LSE, and |df| <= 1."""
    if "lse" not in adapter.exposes(problem):
        return skipped("it returns no LSE")
    call = problem.inputs()
    plain, found = (run(adapter, problem, one) for one in (_without(call), call))
    errors, own = (bounds(adapter, problem, one) for one in (_without(call), call))
    f, moved = _factor(plain["lse"], call), torch.expm1(errors["lse"]).transpose(1, 2)[..., None]
    o = plain["o"].double()
    of_factor = (
        (f * _factor(plain["lse"], call, sign=-1.0) * moved).nan_to_num(1.0, 1.0).clamp(max=1)
    )
    allowed = own["o"] + f * errors["o"] + of_factor * (o.abs() + errors["o"])
    said = "with sigma(LSE - sink) times what a sink of -inf gives"
    return within(call, {"o": found["o"]}, {"o": f * o}, {"o": allowed}, said)


def _as_key(adapter: Adapter, problem: Any) -> list[Outcome]:
    """The last column of q is the sink, that of keys 0, and that of one key more 1 / c."""
    call = problem.inputs()
    q, k = call.q.clone(), call.k.clone()
    sink = call.sink.clamp(-64.0, 64.0)
    q[..., -1], k[..., -1] = sink.to(q.dtype), 0.0
    one = torch.zeros_like(k[:, :1])
    one[..., -1] = 1 / SCALE
    given = replace(call, q=q, k=k, sink=sink, softmax_scale=SCALE)
    nothing = torch.zeros_like(call.v[:, :1])
    other = _without(replace(given, k=torch.cat((k, one), 1), v=torch.cat((call.v, nothing), 1)))
    found, wanted = (_of_whole(run(adapter, problem, one), given) for one in (given, other))
    allowed = summed(*(bounds(adapter, problem, one) for one in (given, other)))
    return within(given, found, wanted, allowed, "with a key of the sink's score")


def _of_whole(found: Tensors, call: Any) -> Tensors:
    """The outputs that both calls have: LSE where it includes the sink."""
    kept = ("o", "lse") if call.lse_includes_sink else ("o",)
    return {name: x for name, x in found.items() if name in kept}


def _sunk(problem: Any) -> str | None:
    return None if problem.sink else "it takes no sink"


def _dense(problem: Any) -> str | None:
    reason = "it needs a batch with every key visible"
    return reason if problem.packed or problem.causal else _sunk(problem)


_law = partial(attention_law, untestable=_sunk)
SINK_LAWS: Final = (
    _law("no-sink", "sinks of -inf give what none gives",
         "inf - inf of rows and splits without keys (K3, C13)", _unsunk, sink="level"),
    _law("sink-factor", "o with a sink is sigma(LSE - sink) times o without",
         "sinks of every split, of another head, base or scale (C13, K4)", _multiplied,
         sink="level"),
)  # fmt: skip
DENSE_SINK_LAWS: Final = (
    *SINK_LAWS,
    attention_law(
        "sink-as-key",
        "a sink is one key more, of its score and of value 0",
        "LSE without the sink where it is declared to include it",
        _as_key,
        untestable=_dense,
        becomes=lambda problem: (problem.replace(s_k=problem.s_k + 1),),
        sink="level",
        causal=False,
        q_lengths=None,
        k_lengths=None,
    ),
)
