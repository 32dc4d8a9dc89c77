"""Laws of the merge of two states."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Final

import torch

from kdaverify.adapters.base import Adapter
from kdaverify.checks.outcome import Outcome
from kdaverify.operators.attention.laws.bounded import (
    attention_law,
    bounds,
    same_but_lse,
    within,
)
from kdaverify.operators.relations import run, same
from oracles.attention.calls import MergeCall


def _swapped(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    other = MergeCall(call.o_b, call.lse_b, call.o_a, call.lse_a)
    found = run(adapter, problem, other)
    return same(adapter, call, found, run(adapter, problem, call), "with the parts swapped")


def _identity(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    nothing = torch.full_like(call.lse_b, -torch.inf)
    alone = replace(call, o_b=torch.zeros_like(call.o_b), lse_b=nothing)
    lse = call.lse_a.masked_fill(torch.isneginf(call.lse_a), 0.0)
    return within(
        alone,
        run(adapter, problem, alone),
        {"o": call.o_a, "lse": lse},
        bounds(adapter, problem, alone),
        "with the other part where one has no key",
    )


def _doubled(adapter: Adapter, problem: Any) -> list[Outcome]:
    call = problem.inputs()
    twice = replace(call, o_b=call.o_a, lse_b=call.lse_a)
    lse = (call.lse_a.double() + math.log(2)).masked_fill(torch.isneginf(call.lse_a), 0.0)
    return within(
        twice,
        run(adapter, problem, twice),
        {"o": call.o_a, "lse": lse},
        bounds(adapter, problem, twice),
        "with a part merged with itself",
    )


def _shifted(adapter: Adapter, problem: Any) -> list[Outcome]:
    """2^6 added to both LSE leaves the weights; exact where LSE is a multiple of 2^-12, to the base
    that the function takes.
    """
    call, unit = problem.inputs(), _one(adapter)
    grid = [(x.double() / unit * 2.0**12).round() / 2.0**12 for x in (call.lse_a, call.lse_b)]
    before, after = (
        replace(call, lse_a=(grid[0] + shift) * unit, lse_b=(grid[1] + shift) * unit)
        for shift in (0.0, 64.0)
    )
    moved = torch.where(call.empty, 0.0, 64.0 * unit)
    return same_but_lse(adapter, problem, before, after, "with both LSE shifted", more=moved)


def _one(adapter: Adapter) -> float:
    """The natural LSE that is 1 to the base of an implementation."""
    takes = adapter.takes
    return math.log(2) if takes is not None and takes.words.get("lse") == "2" else 1.0


_CHECKS: Final = (
    attention_law("swapped", "a merge is commutative", "weights of the wrong part", _swapped),
    attention_law("identity", "a part without keys, (0, -inf), changes nothing",
                  "empty parts that count (C7, C8, C9)", _identity),
    attention_law("doubled", "a part merged with itself is that part with LSE + ln 2",
                  "maxima instead of sums, base 2 taken for e", _doubled),
    attention_law("shifted", "a constant added to both LSE leaves o and is added to LSE",
                  "exponentials without a maximum, finite sentinels (S4, C9)", _shifted),
)  # fmt: skip
MERGE_LAWS: Final = {law.name: law for law in _CHECKS}
