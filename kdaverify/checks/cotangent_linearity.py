"""Linearity of a backward in the cotangents (math.md 7, law 13), exact for powers of two."""

from __future__ import annotations

from typing import Final, Literal

import torch

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.linearity import defect, linearity_standard
from kdaverify.checks.bits import BitwiseCall, Relation, everywhere, exactly, same_bits, subnormals
from kdaverify.checks.execute import CallError
from kdaverify.checks.gradients import run_backward
from kdaverify.checks.outcome import Outcome, judged, skipped
from kdaverify.problems import Problem
from kdaverify.problems.cotangents import coarse_cotangents, of_exposed
from oracles.autograd import ForwardOnlyError
from oracles.gradients import combined
from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS

Law = Literal["sum", "power", "zero"]
LAWS: Final[tuple[Law, ...]] = ("sum", "power", "zero")
"""do1 - 2 do2 gives the sum of what each gives; 2^n do gives 2^n times the same bits; 0 gives
exactly 0."""

FACTORS: Final = (1.0, -2.0, -1.0)
"""Of do1, do2 and do1 - 2 do2, which they add up to 0 with."""


def cotangent_linearity(
    adapter: Adapter, problem: Problem, *, law: Law, exponent: int = 0
) -> list[Outcome]:
    """Runs the problem there and back with several cotangents and compares what comes back.

    Args:
        exponent: of the power of two for the law "power".
    """
    of = of_exposed(adapter.exposes(problem))
    inputs = problem.inputs()
    try:
        if law == "sum":
            return _sum(adapter, problem, inputs, of)
        if law == "power":
            return _power(adapter, problem, inputs, of, exponent)
        return _zero(adapter, problem, inputs, of)
    except (ForwardOnlyError, ContractOverflow) as reason:
        return skipped(str(reason))
    except CallError as fault:
        return [Outcome(fault.output, fault.status, fault.message)]


def _sum(adapter: Adapter, problem: Problem, inputs: Inputs, of: str) -> list[Outcome]:
    """Cotangents of few bits, so that their sum is exact in every format."""
    parts = [coarse_cotangents(problem, of, number) for number in range(2)]
    given = [*parts, combined(parts, FACTORS[:2])]
    runs = [run_backward(adapter, inputs, dy) for dy in given]
    found = defect(runs, FACTORS)
    received, contract = adapter.received(inputs), adapter.backward_contract(problem.dtype)
    return judged(
        found,
        received,
        lambda: linearity_standard(received, given, FACTORS, contract, FORMATS[problem.dtype]),
    )


def _power(
    adapter: Adapter, problem: Problem, inputs: Inputs, of: str, exponent: int
) -> list[Outcome]:
    """Bits are demanded where rounding references keep them: without under- and overflow."""
    reason = subnormals(adapter.backward_contract(problem.dtype).operands)
    if reason:
        return skipped(reason)
    given, factor = coarse_cotangents(problem, of, 0), 2.0**exponent
    calls = (BitwiseCall(inputs, dy) for dy in (given, combined([given], [factor])))
    return same_bits(adapter, problem, Relation(*calls, factors=dict.fromkeys(GRADIENTS, factor)))


def _zero(adapter: Adapter, problem: Problem, inputs: Inputs, of: str) -> list[Outcome]:
    found = run_backward(adapter, inputs, combined([coarse_cotangents(problem, of, 0)], [0.0]))
    return [
        exactly(
            name,
            x != 0,
            x.double(),
            inputs,
            wanted=torch.zeros_like(x).double(),
            compared=everywhere(name, x),
        )
        for name, x in found.items()
    ]
