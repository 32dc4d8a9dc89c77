"""Probes: inputs on which single roundings show, by usual statistics and own measures."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter, is_interpreted
from kdaverify.adapters.isolation.arena import same
from kdaverify.budgets.ensemble import ContractOverflow, Emulation, emulate
from kdaverify.budgets.formats import FORMATS
from kdaverify.budgets.measures import RULERS, Probed
from kdaverify.budgets.standard import standard
from kdaverify.checks.compare import Comparison
from kdaverify.checks.execute import CallError, execute
from kdaverify.checks.figures import figure, together
from kdaverify.checks.outcome import Outcome, judged, skipped
from kdaverify.checks.resume import resumed, unresumable
from kdaverify.checks.status import Status
from kdaverify.problems import Problem, ProblemError
from kdaverify.problems.probes import PROBES, Probe
from oracles.certified import UncertifiedError
from oracles.inputs import Inputs
from oracles.tensors import OUTPUTS, SIGNATURE

# An interpreted kernel takes minutes for more; a shorter probe tests the same rounding.
INTERPRETED_TOKENS = 1024


def probes(adapter: Adapter, problem: Problem, *, probe: str) -> list[Outcome]:
    """Runs a probe; judges exposed outputs by their tolerance and the probe's own measures.

    The tolerance comes from the reference ensemble of the contract: where the contract has the
    rounding that a probe looks for, the reference ensemble makes it too, and such a kernel passes.

    Args:
        problem: the probe's own, in one of its formats, at any widths.
        probe: its name.
    Raises:
        ProblemError: there is no such probe.
    """
    if probe not in PROBES:
        raise ProblemError(f"probe: no probe named {probe!r}; known ones are {', '.join(PROBES)}")
    tested = PROBES[probe].of(problem)
    reason = _untested(adapter, tested)
    if reason:
        return skipped(reason)
    try:
        found = _scaled(adapter, tested) if tested.exponent else _measured(adapter, tested)
    except ContractOverflow as overflow:
        return skipped(str(overflow))
    except UncertifiedError as blunt:
        return [Outcome("call", Status.ORACLE_UNCERTIFIED, str(blunt))]
    except CallError as fault:
        found = [Outcome(fault.output, fault.status, fault.message)]
    return [_reported(outcome, tested) for outcome in found]


def _untested(adapter: Adapter, tested: Probe) -> str | None:
    T = tested.problem.T
    if T > INTERPRETED_TOKENS and is_interpreted(adapter):
        return (
            f"{T} tokens under an interpreter, wanted at most {INTERPRETED_TOKENS}; a shorter probe"
            " tests the same rounding"
        )
    return None if tested.cut is None else unresumable(adapter, tested.problem, tested.cut)


def _reported(outcome: Outcome, tested: Probe) -> Outcome:
    """Adds the faults that the probe is there for to a rejection."""
    if not outcome.status.rejects:
        return outcome
    return replace(
        outcome, message=f"{outcome.message}\n  probe {tested.name} exposes: {tested.exposes}"
    )


def _measured(adapter: Adapter, tested: Probe) -> list[Outcome]:
    """One run, or one in two parts, against the truth."""
    inputs, io = tested.problem.inputs(), FORMATS[tested.problem.dtype]
    cuts = () if tested.cut is None else (tested.cut,)
    produced = resumed(adapter, inputs, cuts[0]) if cuts else _outputs(adapter, tested, inputs)
    if not adapter.answers:
        return skipped("exported, not judged")
    received, contract = adapter.received(inputs), adapter.contract(tested.problem.dtype)
    emulation = emulate(received, contract, io, cuts=cuts)
    held = standard(received, contract, io, emulation)

    def measured(name: str) -> Iterator[Comparison]:
        state, truth = SIGNATURE.is_state(name), held.exact(name)
        at = Probed(truth, received.state if state else None, contract.carry if state else io)
        actual = produced[name].to(held.device).double()
        for measure in tested.measures:
            ruler = RULERS[measure]
            if name in ruler.outputs:
                found = ruler.figures(truth.error(actual), at)
                allowed = ruler.allowed(at, *_runs(emulation, name))
                yield figure(
                    measure, name, found, allowed, actual=actual, exact=truth.high, inputs=received
                )

    return [_with(outcome, measured) for outcome in judged(produced, received, lambda: held)]


def _with(outcome: Outcome, figures: Callable[[str], Iterable[Comparison]]) -> Outcome:
    """The outcome with further figures of its output, if finite and without lost zeros."""
    comparison = outcome.comparison
    if comparison is None or not comparison.ratios:
        return outcome
    comparison = functools.reduce(together, figures(outcome.output), comparison)
    return replace(
        outcome, status=comparison.status, comparison=comparison, message=str(comparison)
    )


def _runs(emulation: Emulation, output: str) -> tuple[list[Tensor], list[Tensor]]:
    position = OUTPUTS.index(output)
    return [run[position] for run in emulation.rounded.values()], [
        run[position] for run in emulation.drawn
    ]


def _outputs(adapter: Adapter, tested: Probe, inputs: Inputs) -> dict[str, Tensor]:
    return execute(adapter, inputs, adapter.exposes(tested.problem)).outputs


def _scaled(adapter: Adapter, tested: Probe) -> list[Outcome]:
    """Math: law 6. Two runs, the second with v and S_0 scaled, and judged: the same bits wherever
    every reference kernel keeps them.
    """
    inputs, factor = tested.problem.inputs(), 2.0**tested.exponent
    pair = (inputs, _times(inputs, factor))
    plain, scaled = (_outputs(adapter, tested, x) for x in pair)
    if not adapter.answers:
        return skipped("exported, not judged")
    wanted = {name: factor * tensor.double().cpu() for name, tensor in plain.items()}
    missed = {name: (scaled[name].double().cpu() - wanted[name]).abs() for name in scaled}
    if any(bool(x.any()) for x in missed.values()):
        again = _outputs(adapter, tested, inputs)
        if any(not same(plain[name], again[name]) for name in plain):
            return skipped("its outputs are not the same bits at every call")
    received = (*map(adapter.received, pair),)
    contract = adapter.contract(tested.problem.dtype)
    io = FORMATS[tested.problem.dtype]
    emulations = [emulate(x, contract, io) for x in received]
    held = standard(received[1], contract, io, emulations[1])

    def relation(name: str) -> Iterator[Comparison]:
        members, scaled_members = (emulation.rounded for emulation in emulations)
        position = OUTPUTS.index(name)
        kept = [member for member in members if member in scaled_members]
        allowed = torch.stack(
            [(factor * members[m][position] - scaled_members[m][position]).abs() for m in kept]
        ).amax(0)
        actual = scaled[name].double().cpu()
        yield figure(
            "relation",
            name,
            missed[name],
            allowed,
            actual=actual,
            exact=wanted[name],
            inputs=received[1],
        )

    return [_with(outcome, relation) for outcome in judged(scaled, received[1], lambda: held)]


def _times(inputs: Inputs, factor: float) -> Inputs:
    state = None if inputs.initial_state is None else inputs.initial_state * factor
    return replace(inputs, v=inputs.v * factor, initial_state=state)
