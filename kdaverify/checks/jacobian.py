"""Jacobian: every derivative of every output element of a tiny problem against exact ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, is_interpreted
from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.gradient_standard import gradient_standard
from kdaverify.checks.execute import CallError
from kdaverify.checks.gradients import run_backward
from kdaverify.checks.outcome import Outcome, judged, skipped
from kdaverify.problems import TORCH, Problem
from kdaverify.problems.axes import state_dtype
from oracles.autograd import ForwardOnlyError
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from oracles.tensors import OUTPUTS, SIGNATURE
from oracles.together import cotangents_together, together, tokens_together

# Every row is a backward call of the kernel.
MOST_ROWS: Final = 24
# Of kernels whose every call costs a second.
MOST_ROWS_INTERPRETED: Final = 8


def rows(problem: Problem) -> int:
    """Elements of the outputs, each a row of the Jacobian."""
    tokens = problem.B * problem.T if problem.lengths is None else sum(problem.lengths)
    return problem.HV * problem.V * (tokens + problem.N * problem.K)


def most_rows(adapter: Adapter) -> int:
    """How many of them a suite tests."""
    return MOST_ROWS_INTERPRETED if is_interpreted(adapter) else MOST_ROWS


def jacobian(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Requests the gradients of every single output element and judges them as those of one call.

    Args:
        problem: of at most MOST_ROWS rows.
    """
    if problem.dtype == "fp64":
        return skipped("float64 kernels are differentiated by gradcheck")
    if rows(problem) > MOST_ROWS:
        return skipped(f"{rows(problem)} rows, and at most {MOST_ROWS} are tested, one at a time")
    inputs, tested = problem.inputs(), dict(_units(problem, adapter.exposes(problem)))
    try:
        found = [run_backward(adapter, inputs, dy) for dy in tested.values()]
    except ForwardOnlyError as reason:
        return skipped(str(reason))
    except CallError as fault:
        return [Outcome(fault.output, fault.status, fault.message)]
    received = adapter.received(inputs)
    contract = adapter.backward_contract(problem.dtype)
    io = FORMATS[problem.dtype]
    joined = together([received] * len(tested))
    given = cotangents_together([*tested.values()], received)
    outcomes = judged(
        {name: _together(name, [row[name] for row in found], received) for name in found[0]},
        joined,
        lambda: gradient_standard(
            joined, given, contract, io, emulate_gradients(joined, given, contract, io)
        ),
    )
    return [_named(outcome, [*tested], received) for outcome in outcomes]


def _units(problem: Problem, exposed: tuple[str, ...]) -> Iterator[tuple[str, Cotangents]]:
    """A cotangent of 1 for every element of o that a sequence holds and of S_T, by its name."""
    p = problem
    tokens = [(b, t) for b, first, length in p.spans for t in range(first, first + length)]
    for head in range(p.HV):
        for column in range(p.V):
            for b, t in tokens:
                do = torch.zeros(p.B, p.T, p.HV, p.V, dtype=TORCH[p.dtype])
                do[b, t, head, column] = 1.0
                yield f"o[{b}, {t}, {head}, {column}]", Cotangents(do=do)
            for n, channel in [
                (n, channel)
                for n in range(p.N)
                for channel in range(p.K)
                if {*OUTPUTS} <= {*exposed}
            ]:
                dS = torch.zeros(p.N, p.HV, p.K, p.V, dtype=state_dtype(p.dtype))
                dS[n, head, channel, column] = 1.0
                yield f"final_state[{n}, {head}, {channel}, {column}]", Cotangents(d_final_state=dS)


def _together(name: str, found: list[Tensor], one: Inputs) -> Tensor:
    return torch.cat(found) if SIGNATURE.is_state(name) else tokens_together(found, one)


def _named(outcome: Outcome, tested: list[str], one: Inputs) -> Outcome:
    """Says in which row an outcome is worst."""
    if outcome.comparison is None or outcome.comparison.worst is None:
        return outcome
    n, t, *_ = outcome.comparison.worst.index
    dense = n // (one.N if SIGNATURE.is_state(outcome.output) else one.B)
    if one.cu_seqlens is None or SIGNATURE.is_state(outcome.output):
        row = dense
    else:
        row = t // sum(one.lengths)
    return replace(
        outcome,
        message=(
            f"{outcome.message}\n  in the row of {tested[row]}, of {len(tested)} rows one after"
            " another"
        ),
    )
