"""Laws of the gated RMSNorm, each to the bit or within the bound of every element."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import torch

from kdaverify.adapters.base import Adapter
from kdaverify.checks.outcome import Outcome
from kdaverify.operators.gated_norm.problem import GatedNormProblem
from kdaverify.operators.relations import exactly, relation, run, same

POWER: Final = 2.0**3


def _scaled_rows(adapter: Adapter, problem: GatedNormProblem) -> list[Outcome]:
    call = problem.inputs()
    larger = replace(call, x=call.x * POWER, eps=call.eps * POWER**2)
    return exactly(larger, run(adapter, problem, larger), run(adapter, problem, call))


def _scaled_weight(adapter: Adapter, problem: GatedNormProblem) -> list[Outcome]:
    call = problem.inputs()
    larger = replace(call, weight=call.weight * POWER)
    wanted = {"y": run(adapter, problem, call)["y"].double() * POWER}
    return exactly(larger, run(adapter, problem, larger), wanted)


def _negated(adapter: Adapter, problem: GatedNormProblem) -> list[Outcome]:
    call = problem.inputs()
    turned = replace(call, x=-call.x)
    return exactly(turned, run(adapter, problem, turned), {"y": -run(adapter, problem, call)["y"]})


def _reordered(adapter: Adapter, problem: GatedNormProblem) -> list[Outcome]:
    call = problem.inputs()
    turned = replace(call, x=call.x.flip(1), gate=call.gate.flip(1))
    found = {"y": run(adapter, problem, turned)["y"].flip(1)}
    return same(
        adapter, call, found, run(adapter, problem, call), "with the rows in reversed order"
    )


def _alone(adapter: Adapter, problem: GatedNormProblem) -> list[Outcome]:
    call = problem.inputs()
    parts = [
        replace(
            call, x=call.x[:, t : t + 1].contiguous(), gate=call.gate[:, t : t + 1].contiguous()
        )
        for t in range(min(problem.T, 8))
    ]
    found = torch.cat([run(adapter, problem, part)["y"] for part in parts], 1)
    whole = run(adapter, problem, call)["y"]
    return same(
        adapter,
        call,
        {"y": torch.cat((found, whole[:, len(parts) :]), 1)},
        {"y": whole},
        "for every token alone",
    )


def _flattened(adapter: Adapter, problem: GatedNormProblem) -> list[Outcome]:
    call = problem.inputs()
    found = run(adapter, problem, replace(call, rank=2))
    return same(
        adapter,
        call,
        found,
        run(adapter, problem, replace(call, rank=4)),
        "with the leading axes flattened",
    )


LAWS: Final = {
    law.name: law
    for law in (
        relation("scaled-rows", "x times 2^3 and eps times 2^6 give the same y, exactly",
                 "eps outside the root or of other units, clamps of the norm (N13)", _scaled_rows,
                 value="small",
                 becomes=lambda problem: (problem.replace(eps=problem.eps * POWER**2),)),
        relation("scaled-weight", "the weight times 2^3 gives y times 2^3, exactly",
                 "a weight that is not the weight (N8)", _scaled_weight, value="normal"),
        relation("negated-rows", "-x gives -y, exactly", "means subtracted, moduli", _negated),
        relation("reordered-rows", "rows are independent and in any order",
                 "roots of neighbouring rows", _reordered),
        relation("rows-alone", "a token gives what it gives among others",
                 "work space shared among rows", _alone),
        relation("flattened", "rows of two axes give what rows of four axes give",
                 "addresses of leading axes (N6)", _flattened),
    )
}  # fmt: skip
"""By name, those to the bit first."""
