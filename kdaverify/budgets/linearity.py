"""What roundings may make of linearity: in cotangents, in values and initial state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.backward import emulate_gradients
from kdaverify.budgets.budget import Budget
from kdaverify.budgets.cancellation import size_of_dg
from kdaverify.budgets.constants import GAIN, SUMS_LOSE
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.conversions import (
    as_it_is,
    received_gradients,
    received_terms,
    undefined_gradients,
)
from kdaverify.budgets.ensemble import emulate
from kdaverify.budgets.formats import Format
from kdaverify.budgets.parts import Outputs
from kdaverify.budgets.standard import Reference, ToleranceContext
from oracles.adjoint import adjoint_with_terms
from oracles.enclosure import CertifiedOutputs, Enclosure
from oracles.gradients import Cotangents, GradientAnswer, Gradients, Terms
from oracles.inputs import Inputs
from oracles.recurrence import recurrence
from oracles.tensors import OUTPUTS
from oracles.together import (
    cotangents_together,
    gradients_apart,
    states_apart,
    together,
    tokens_apart,
)

METHOD: Final = "linear in exact arithmetic"


def defect(found: Sequence[Mapping[str, Tensor]], factors: Sequence[float]) -> dict[str, Tensor]:
    """What gradients of cotangents with these factors add up to, by name, in float64."""
    return {
        name: (
            torch.stack([f * x[name].double() for f, x in zip(factors, found, strict=True)]).sum(0)
        )
        for name in found[0]
    }


def linearity_standard(
    inputs: Inputs,
    given: Sequence[Cotangents],
    factors: Sequence[float],
    contract: Contract,
    io: Format,
) -> Reference:
    """What the defect of a kernel is held against: 0, and what the ensemble's own defects are.

    An element may also be off by what rounding each gradient on its return costs, and what sums
    whose terms cancel lose, as in `gradient_standard`.

    Args:
        inputs: what the kernel receives.
        given: cotangents that add up to 0 with `factors`.
    Raises:
        ContractOverflow: a deciding reference kernel overflows on these inputs.
    """
    number = len(given)
    joined, cotangents = together([inputs] * number), cotangents_together(given, inputs)
    canonical, terms = adjoint_with_terms(joined, cotangents)
    exact = received_gradients(canonical, joined, joined, contract, as_it_is)
    undefined = undefined_gradients(inputs, contract)

    def defects(run: Gradients[Tensor], by: Sequence[float] = factors) -> dict[str, Tensor]:
        return defect([part.named() for part in gradients_apart(run, inputs, number)], by)

    sizes = defects(
        _missed(joined, exact, terms, contract, io), [abs(factor) for factor in factors]
    )
    emulation = emulate_gradients(joined, cotangents, contract, io)
    rounded = [defects(run) for run in emulation.members]
    drawn = [defects(run) for run in emulation.drawn]
    room = ToleranceContext(contract, io, GAIN * max(inputs.K, inputs.V))
    zeros = Gradients(**{name: _zero(x) for name, x in sizes.items()})

    def budget(name: str) -> Budget:
        members, draws = ([run[name] for run in runs] for runs in (rounded, drawn))
        allowed = room.budget(
            zeros.named()[name], members, draws, contract.returned(name, io), floor=sizes[name]
        )
        return replace(allowed, undefined=undefined.get(name))

    judged = [name for name, size in sizes.items() if size.shape[-1]]
    return Reference(GradientAnswer(zeros, terms, METHOD), {name: budget(name) for name in judged})


def output_linearity_standard(
    calls: Sequence[Inputs], factors: Sequence[float], contract: Contract, io: Format
) -> Reference:
    """The same for outputs: 0, the ensemble's own defects, and the cost of final roundings.

    Args:
        calls: what the kernel receives; they differ in v and S_0, which add up to 0.
    Raises:
        ContractOverflow: a deciding reference kernel overflows on these inputs.
    """
    one, number, formats = calls[0], len(calls), contract.output_formats(io)
    joined = together(calls)

    def defects(run: Outputs, by: Sequence[float] = factors) -> dict[str, Tensor]:
        apart = zip(
            tokens_apart(run[0], one, number), states_apart(run[1], one, number), strict=True
        )
        return defect([dict(zip(OUTPUTS, part, strict=True)) for part in apart], by)

    o, final = recurrence(joined)
    of_o, of_final = formats.values()
    returned = (of_o.unit * o.abs(), of_final.unit * final.abs())
    floors = defects(returned, [abs(factor) for factor in factors])
    emulation = emulate(joined, contract, io)
    rounded = [defects(run) for run in emulation.rounded.values()]
    drawn = [defects(run) for run in emulation.drawn]
    room = ToleranceContext(contract, io, one.K)
    zeros = {name: _zero(x) for name, x in floors.items()}

    def budget(name: str) -> Budget:
        members, draws = ([run[name] for run in runs] for runs in (rounded, drawn))
        return room.budget(zeros[name], members, draws, formats[name], floor=floors[name])

    return Reference(
        CertifiedOutputs(**zeros, method=METHOD), {name: budget(name) for name in OUTPUTS}
    )


def _missed(
    joined: Inputs, exact: Gradients[Tensor], terms: Terms, contract: Contract, io: Format
) -> Gradients[Tensor]:
    """The error that each gradient's element may have, however small the ensemble's are."""
    missed = {name: contract.returned(name, io).unit * x.abs() for name, x in exact.named().items()}
    ahead = received_terms(size_of_dg(joined, terms.dg, contract), joined, contract)
    cancelling = {"dg": ahead, "d_initial_state": terms.d_initial_state}
    return Gradients(
        **missed
        | {
            name: missed[name] + SUMS_LOSE * contract.accumulate.unit * x
            for name, x in cancelling.items()
        }
    )


def _zero(like: Tensor) -> Enclosure:
    nothing = torch.zeros_like(like)
    return Enclosure(nothing, nothing, nothing, torch.zeros_like(like, dtype=torch.bool))
