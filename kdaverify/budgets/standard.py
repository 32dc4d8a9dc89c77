"""Truth and budget of one problem: what every run of it is held against."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from kdaverify.budgets.budget import Budget, budget
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.family import Emulation
from kdaverify.budgets.formats import FORMATS, Format
from oracles.cache import AnswerCache, default_folder
from oracles.certified import certify
from oracles.enclosure import OUTPUTS, Answer, Enclosure
from oracles.inputs import Inputs
from oracles.running_error import enclosed

# An oracle may be wrong by this fraction of any allowance, no more.
ORACLE_SHARE = 2.0**-20
# Up to this precision of the operands the float64 recurrence can be sharp enough; above it only balls are.
FLOAT64_ORACLE_PRECISION = 11


@dataclass(frozen=True)
class Standard:
    """The exact outputs of a problem and what a kernel under the contract may miss them by."""

    truth: Answer
    budgets: dict[str, Budget]

    def exact(self, output: str) -> Enclosure:
        return _output(self.truth, output)


def standard(inputs: Inputs, contract: Contract, io: Format, emulation: Emulation) -> Standard:
    """Truth sharp enough to judge by, and the budgets it gives.

    The oracle is the float64 recurrence where its proven radius is at most 2^-20 of every allowance, certified balls otherwise.

    Args:
        inputs: what the kernel receives.
        contract: what it declares.
        io: format of q, k, v and o.
        emulation: what the family of the contract made of these inputs.
    Raises:
        UncertifiedError: no precision within the ceiling makes the oracle sharp enough.
    """
    formats = {"o": io, "final_state": contract.carry}

    def budgets(truth: Answer) -> dict[str, Budget]:
        return {
            name: budget(
                _output(truth, name),
                [run[i] for run in emulation.rounded.values()],
                [run[i] for run in emulation.drawn],
                io=formats[name],
                unit=max(contract.operands.unit, formats[name].unit),
                # On a unit that flushes, each of the K terms of a dot product may vanish.
                lost=inputs.K * contract.accumulate.min_normal,
                moved=truth.final_state.high - inputs.state.double() if name == "final_state" else None,
            )
            for i, name in enumerate(OUTPUTS)
        }

    def sharp(truth: Answer) -> bool:
        return all(_is_sharp(_output(truth, name), allowed) for name, allowed in budgets(truth).items())

    truth = enclosed(inputs) if contract.operands.precision <= FLOAT64_ORACLE_PRECISION else None
    if truth is None or not sharp(truth):
        # The rule's first precision suits fp32; each further bit of the contract needs one more.
        extra = max(0, contract.accumulate.precision - FORMATS["fp32"].precision)
        truth = certify(inputs, accept=sharp, extra_bits=extra, cache=AnswerCache(default_folder()))
    return Standard(truth, budgets(truth))


def _output(truth: Answer, name: str) -> Enclosure:
    return truth.o if name == "o" else truth.final_state


def _is_sharp(truth: Enclosure, allowed: Budget) -> bool:
    # A radius is an error like any other: the comparator's own statistics say whether it is small enough.
    ratios = allowed.ratios(allowed.measure(truth.radius, truth))
    return bool(torch.isfinite(truth.radius).all()) and max(ratios.values()) <= ORACLE_SHARE
