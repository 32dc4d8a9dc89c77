"""Results of different calls that must agree, within conforming errors of both."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.laws.law import Law, nothing_else, of_any
from kdaverify.checks.outcome import Outcome
from kdaverify.checks.place import first_true, place
from kdaverify.checks.status import Status
from kdaverify.operators.attention.tolerance import counted
from kdaverify.operators.relations import Tensors, Untestable, exactly, relation, run, same
from oracles.attention.split import merge

Reason = Callable[[Any], str | None]
"""Why a law cannot be tested on a problem; None if it can."""
attention_law = partial(relation, section="mla.md 5")
"""`relation` for laws of attention, paged decode and merges."""


def sinkless(
    *of: Any,
    untestable: Reason = of_any,
    becomes: Callable[[Any], tuple[Any, ...]] = nothing_else,
    **options: Any,
) -> Law:
    """A law of attention that a sink breaks."""

    def reason(problem: Any) -> str | None:
        return "it needs no sink" if problem.sink else untestable(problem)

    return attention_law(*of, untestable=reason, becomes=becomes, sink=None, **options)


SLACK: Final = 1.0 + 1e-6
"""Of the bounds, which are computed in float64 themselves."""


def bounds(
    adapter: Adapter, problem: Any, call: Any, given: Mapping[str, Tensor] | None = None
) -> Tensors:
    """The largest error of every element that a conforming kernel has, by output or gradient.

    Raises:
        Untestable: operands have fewer bits than the inputs. Their roundings are in no bound: a
            right kernel of TF32 products had 200 times that of the one key that it read.
    """
    contract: Any = adapter.contract(problem.dtype)
    if contract.operands.unit > FORMATS[problem.dtype].unit:
        raise Untestable(f"products round the inputs to {contract.operands.name}")
    found = counted(call, given, contract, FORMATS[problem.dtype])
    return {name: error.bound for name, (_, error) in found.items()}


def same_bits(adapter: Adapter, problem: Any, call: Any, other: Any, said: str) -> list[Outcome]:
    """The same numbers from both calls, or right ones where a kernel does not repeat."""
    plain, found = run(adapter, problem, call), run(adapter, problem, other)
    if adapter.deterministic:
        return exactly(call, found, plain)
    return same(adapter, call, found, plain, said)


def heads_reversed(adapter: Adapter, problem: Any) -> list[Outcome]:
    """Query heads in reverse within their key heads, and key heads in reverse."""
    call = problem.inputs()
    sink = None if call.sink is None else call.sink.flip(0)
    other = replace(call, q=call.q.flip(2), cache=call.cache.flip(2), sink=sink)
    turned = run(adapter, problem, other)
    found = {name: x.flip(1 if name == "lse" else 2) for name, x in turned.items()}
    return same(adapter, call, found, run(adapter, problem, call), "with heads in reverse")


def within(
    call: Any,
    found: Mapping[str, Tensor],
    wanted: Mapping[str, Tensor],
    allowed: Mapping[str, Tensor],
    said: str,
) -> list[Outcome]:
    """Whether results differ by no more than both calls may err.

    Args:
        call: of a tensor's place.
        found: what the kernel returns: with lse="none" it has no LSE to compare.
        allowed: the sum of both bounds, by name.
    """
    return [
        _within((call, name), x, wanted[name], allowed[name], said)
        for name, x in found.items()
        if name in wanted
    ]


def _within(
    of: tuple[Any, str], found: Tensor, wanted: Tensor, allowed: Tensor, said: str
) -> Outcome:
    call, name = of
    gap = (found.double() - wanted.double()).abs()
    # 0 times no bound is no bound: logits of -64,000 of keys in 16 bits are off by a hundred
    wrong = ~(gap <= SLACK * allowed.nan_to_num(nan=torch.inf, posinf=torch.inf))
    if not bool(wrong.any()):
        return Outcome(name, Status.PASS, f"{name}: agrees {said} within the bounds of both")
    at = first_true(wrong)
    got, other, most = (float(x.flatten()[at]) for x in (found, wanted, allowed))
    message = (
        f"{name}: {int(wrong.sum())} of {wrong.numel()} elements differ {said} by more than both"
        f" calls may err\n  first at {place(name, at, found.shape, call)}\n  got {got:.9g}, wanted"
        f" {other:.9g}, difference {abs(got - other):.3g}, bound {most:.3g}"
    )
    finite = bool(torch.isfinite(found).all())
    return Outcome(name, Status.FAIL if finite else Status.NONFINITE, message)


def summed(*parts: Mapping[str, Tensor]) -> Tensors:
    """Bounds of several calls, added up by name."""
    return {name: sum((part[name] for part in parts[1:]), parts[0][name]) for name in parts[0]}


def same_but_lse(
    adapter: Adapter, problem: Any, before: Any, after: Any, said: str, *, more: Tensor | float
) -> list[Outcome]:
    """Both calls agree within their bounds, where LSE of the second is `more`."""
    plain, found = run(adapter, problem, before), run(adapter, problem, after)
    wanted = {name: x.double() + (more if name == "lse" else 0) for name, x in plain.items()}
    allowed = summed(*(bounds(adapter, problem, one) for one in (before, after)))
    return within(after, found, wanted, allowed, said)


def whole_of_parts(
    adapter: Adapter, problem: Any, whole: Any, parts: Sequence[Any], said: str
) -> list[Outcome]:
    """A call agrees with the merge of two calls over parts of it."""
    a, b = (run(adapter, problem, part) for part in parts)
    e_a, e_b = (bounds(adapter, problem, part) for part in parts)
    wanted, errors = merged((parts[0].empty, parts[1].empty), (a, b), (e_a, e_b))
    allowed = summed(errors, bounds(adapter, problem, whole))
    return within(whole, run(adapter, problem, whole), wanted, allowed, said)


def merged(
    empties: tuple[Tensor, Tensor], states: tuple[Tensors, Tensors], errors: tuple[Tensors, Tensors]
) -> tuple[Tensors, Tensors]:
    """Two states merged in float64, and what the errors of both make of it.

    Math: |dO| <= max error of o + |o_a - o_b| (exp(e_a + e_b) - 1), |dL| <= max error of lse.

    Args:
        empties: rows without keys of each, [B, s_q].
    """
    lse = [
        x["lse"].double().masked_fill(empty[:, None], -torch.inf)
        for x, empty in zip(states, empties, strict=True)
    ]
    (a, b), (e_a, e_b) = states, errors
    o, total = merge(a["o"], lse[0].transpose(1, 2), b["o"], lse[1].transpose(1, 2))
    moved = torch.expm1(e_a["lse"] + e_b["lse"]).transpose(1, 2)[..., None]
    gap = (a["o"].double() - b["o"].double()).abs()
    known = total.transpose(1, 2).masked_fill(torch.isneginf(total.transpose(1, 2)), 0.0)
    return {"o": o, "lse": known}, {
        "o": torch.maximum(e_a["o"], e_b["o"]) + gap * moved,
        "lse": torch.maximum(e_a["lse"], e_b["lse"]),
    }
