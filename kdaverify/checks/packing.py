"""Packing: sequences give the same results packed, alone, and packed in another order."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import execute
from kdaverify.checks.outcome import Outcome, outcomes, skipped
from kdaverify.problems import Problem
from oracles.inputs import Inputs
from oracles.tensors import SIGNATURE, TOKENS

Arrangement = Literal["packed", "alone", "reversed"]
ARRANGEMENTS: tuple[Arrangement, ...] = ("packed", "alone", "reversed")


def packing(adapter: Adapter, problem: Problem, *, arrangement: Arrangement) -> list[Outcome]:
    """Math: law 3. Runs the sequences of a pack in the given arrangement and judges the results as
    those of the pack.

    Args:
        problem: a packed problem.
        arrangement: "packed" in one call; "alone", each sequence in a call of its own; "reversed",
            in one call, last sequence first.
    """
    if not problem.packed:
        raise ValueError(f"packing: wanted a packed problem, got {problem.describe()}")
    inputs = problem.inputs()
    exposed = adapter.exposes(problem)
    for length in set(inputs.lengths) - {0} if arrangement == "alone" else ():
        reason = adapter.supports(problem.replace(lengths=None, T=length))
        if reason:
            return skipped(reason)
    return outcomes(adapter, inputs, lambda: arranged(adapter, inputs, exposed, arrangement))


def arranged(
    adapter: Adapter, inputs: Inputs, exposed: tuple[str, ...], arrangement: Arrangement
) -> dict[str, Tensor]:
    """The outputs of a pack, by way of an arrangement.

    Raises:
        CallError: a call gave nothing to compare.
    """
    if arrangement == "packed":
        return execute(adapter, inputs, exposed).outputs
    return (_reversed if arrangement == "reversed" else _alone)(adapter, inputs, exposed)


def _alone(adapter: Adapter, inputs: Inputs, exposed: tuple[str, ...]) -> dict[str, Tensor]:
    o = torch.zeros_like(inputs.v)
    states = list[Tensor]()
    for n, (first, length) in enumerate(zip(inputs.starts, inputs.lengths, strict=True)):
        initial = (
            None if inputs.initial_state is None else inputs.initial_state[n : n + 1].contiguous()
        )
        if not length:
            states.append(inputs.state[n : n + 1])
            continue
        run = execute(adapter, inputs.span(first, first + length, initial), exposed)
        o[:, first : first + length] = run.outputs["o"]
        states.extend(run.outputs[name] for name in exposed if name == "final_state")
    return {"o": o, "final_state": torch.cat(states)} if "final_state" in exposed else {"o": o}


def _reversed(adapter: Adapter, inputs: Inputs, exposed: tuple[str, ...]) -> dict[str, Tensor]:
    order = list(range(inputs.N))[::-1]
    rows = torch.cat(
        [torch.arange(inputs.starts[n], inputs.starts[n] + inputs.lengths[n]) for n in order]
    )
    rows = torch.cat((rows, torch.arange(sum(inputs.lengths), inputs.T)))
    offsets = torch.tensor([0, *(inputs.lengths[n] for n in order)]).cumsum(0).to(torch.int32)
    moved = {name: getattr(inputs, name)[:, rows] for name in TOKENS}
    state = None if inputs.initial_state is None else inputs.initial_state[order]
    run = execute(
        adapter, replace(inputs, **moved, cu_seqlens=offsets, initial_state=state), exposed
    )
    back = torch.tensor(order).argsort()
    return {
        name: tensor[back] if SIGNATURE.is_state(name) else tensor[:, rows.argsort()]
        for name, tensor in run.outputs.items()
    }
