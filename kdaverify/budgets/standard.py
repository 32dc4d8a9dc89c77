"""Truth and budget of one problem: what every run of it is held against."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kdaverify.budgets.budget import Budget, budget
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.family import family
from kdaverify.budgets.formats import Format
from kdaverify.budgets.noise import Noise
from kdaverify.budgets.statistics import statistics
from oracles.cache import AnswerCache, default_folder
from oracles.certified import certify
from oracles.enclosure import Answer, Enclosure
from oracles.inputs import Inputs
from oracles.running_error import enclosed

OUTPUTS = ("o", "final_state")
# An oracle may be wrong by this fraction of any allowance, no more.
ORACLE_SHARE = 2.0**-20
# Up to this precision of the operands the float64 recurrence can be sharp enough; above it only balls are.
FLOAT64_ORACLE_PRECISION = 11


class ContractOverflow(Exception):
    """No legal kernel of the contract keeps this problem finite: nothing can be concluded from it."""


@dataclass(frozen=True)
class Standard:
    """The exact outputs of a problem and what a kernel under the contract may miss them by."""

    truth: Answer
    budgets: dict[str, Budget]
    formats: dict[str, Format]

    def exact(self, output: str) -> Enclosure:
        return _output(self.truth, output)


def standard(inputs: Inputs, contract: Contract, io: Format, *, members: tuple[Emulator, ...] | None = None) -> Standard:
    """Runs the family and an oracle sharp enough to judge by it.

    The oracle is the float64 recurrence where its proven radius is at most 2^-20 of every allowance, certified balls otherwise.

    Args:
        inputs: what the kernel receives.
        contract: what it declares.
        io: format of q, k, v and o.
        members: the legal kernels; the family of the contract by default.
    Raises:
        ContractOverflow: every family member overflows on these inputs.
        UncertifiedError: no precision within the ceiling makes the oracle sharp enough.
    """
    drawn = Noise(contract, io).run(inputs)
    outputs = [run for run in (member.run(inputs) for member in members or family(contract, io)) if all(_finite(t) for t in run)]
    if not outputs:
        raise ContractOverflow(f"every emulated kernel of {contract.name} overflows on this problem; choose milder values")
    formats = {"o": io, "final_state": contract.carry}

    def budgets(truth: Answer) -> dict[str, Budget]:
        return {
            name: budget(
                _output(truth, name),
                [run[i] for run in outputs],
                [run[i] for run in drawn],
                io=formats[name],
                unit=max(contract.operands.unit, formats[name].unit),
                moved=truth.final_state.high - inputs.state.double() if name == "final_state" else None,
            )
            for i, name in enumerate(OUTPUTS)
        }

    def sharp(truth: Answer) -> bool:
        return all(_is_sharp(_output(truth, name), allowed, formats[name]) for name, allowed in budgets(truth).items())

    truth = enclosed(inputs) if contract.operands.precision <= FLOAT64_ORACLE_PRECISION else None
    if truth is None or not sharp(truth):
        truth = certify(inputs, accept=sharp, cache=AnswerCache(default_folder()))
    return Standard(truth, budgets(truth), formats)


def _output(truth: Answer, name: str) -> Enclosure:
    return truth.o if name == "o" else truth.final_state


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor).all())


def _is_sharp(truth: Enclosure, allowed: Budget, io: Format) -> bool:
    # A radius is an error like any other: the comparator's own statistics say whether it is small enough.
    radius = statistics(truth.radius, truth, io)
    return bool(torch.isfinite(truth.radius).all()) and max(allowed.ratios(radius).values()) <= ORACLE_SHARE
