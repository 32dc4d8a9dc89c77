"""Assignments of formats on trial: one batched run over all regimes, scored as a kernel is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from kdaverify.budgets.backward import emulate_gradients, member_gradients
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.designs.design import Design, Formats
from kdaverify.budgets.emulate import Emulator
from kdaverify.budgets.ensemble import emulate
from kdaverify.budgets.formats import FORMATS, Format
from kdaverify.budgets.gradient_standard import gradient_standard
from kdaverify.budgets.pipeline import run_form
from kdaverify.budgets.standard import Reference, standard
from kdaverify.problems import Problem, cotangents
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from oracles.together import (
    cotangents_together,
    gradients_apart,
    states_apart,
    together,
    tokens_apart,
)

REGIMES: Final[Mapping[str, Mapping[str, str]]] = {
    "ordinary": {"gate": "log-sigmoid"},
    "one-gate": {"gate": "mild"},
    "zero": {"gate": "zero"},
    "memory": {"gate": "slow", "beta": "sparse", "state": "zero"},
    "coherent": {"gate": "slow", "key": "coherent-0.9", "beta": "near-one"},
    "deep": {"gate": "bound-5"},
}
"""What an assignment is tried on: ordinary gates; one slow gate for all channels; none; one write,
then only decay; coherent keys under slow gates; and the deepest gates of the released models, -5 a
token, which sum to -320 in a chunk."""

_PLAIN: dict[str, Any] = {
    "B": 1,
    "key": "random",
    "beta": "uniform",
    "state": "random",
    "value": "normal",
}


Place = tuple[str, str]
"""A regime and an output."""


@dataclass(frozen=True)
class Trial:
    """What one assignment of formats came to.

    Args:
        formats: of every mailbox.
        shares: the worst statistic as a fraction of what is allowed, by regime and output; inf
            where the output is not finite.
        statistics: which statistic that is; errors: the rms error, likewise.
    """

    formats: Formats
    shares: Mapping[Place, float]
    statistics: Mapping[Place, str]
    errors: Mapping[Place, float]

    @property
    def share(self) -> float:
        """The worst of all."""
        return max(self.shares.values())

    @property
    def worst(self) -> tuple[str, str, str]:
        """The regime, the output and the statistic of the worst."""
        place = max(self.shares, key=lambda place: self.shares[place])
        return *place, self.statistics[place]

    def growth(self, other: Trial) -> dict[Place, float]:
        """By what factor each rms error exceeds another's; inf over one of 0."""
        return {place: _factor(error, other.errors[place]) for place, error in self.errors.items()}

    def only(self, tested: Callable[[Place], bool]) -> Trial:
        """The same, of some regimes and outputs."""
        shares = {place: share for place, share in self.shares.items() if tested(place)}
        return replace(self, shares=shares, errors={place: self.errors[place] for place in shares})


def _factor(error: float, other: float) -> float:
    if error == other:
        return 1.0
    return error / other if other else math.inf


@dataclass(frozen=True)
class DesignTest:
    """A design on a set of problems.

    Args:
        design: whose mailboxes are tried.
        operands: format of the inputs and of what its matrix cores multiply.
        contract: whose reference ensemble gives the tolerance.
        regimes: names, of REGIMES.
        tokens, width: T, and K = V.
        seed: of every problem.
    """

    design: Design
    operands: Format
    contract: Contract
    regimes: tuple[str, ...]
    tokens: int
    width: int
    seed: int = 0

    @cached_property
    def problems(self) -> dict[str, Problem]:
        size = {"T": self.tokens, "H": 1, "HV": 1, "K": self.width, "V": self.width}
        own = {"gates": self.design.gates, "dtype": self.operands.name, "seed": self.seed}
        common = {**_PLAIN, **size, **own}
        fields: dict[str, dict[str, Any]] = {
            name: {**common, **REGIMES[name]} for name in self.regimes
        }
        return {name: Problem(**given) for name, given in fields.items()}

    @cached_property
    def standards(self) -> dict[str, tuple[Reference, Reference]]:
        """Exact values and tolerances of the outputs and of the gradients, by regime."""
        return {name: self._standards(problem) for name, problem in self.problems.items()}

    def prepare(self) -> None:
        """Computes exact values and tolerances now rather than with the first trial."""
        _ = self.standards

    def trial(self, formats: Formats) -> Trial:
        """Runs the design with these formats, there and back, on all regimes at once."""
        return self.trial_of(self.design.emulator(self.operands, formats))

    def trial_of(self, emulator: Emulator) -> Trial:
        """The same of any emulated kernel."""
        formats = {
            mailbox.name: emulator.contract.storage(mailbox.name, self.operands)
            for mailbox in self.design.every
        }
        shares: dict[Place, float] = {}
        statistics: dict[Place, str] = {}
        errors: dict[Place, float] = {}
        for name, outputs in self._run(emulator).items():
            for held in self.standards[name]:
                for output in held.budgets:
                    place = (name, output)
                    shares[place], statistics[place], errors[place] = _scored(
                        held, output, outputs[output]
                    )
        return Trial(formats, shares, statistics, errors)

    def first_overflow(self, formats: Formats, regime: str) -> str | None:
        """The first named tensor of the forward that is not finite there, None if all are."""
        emulator = self.design.emulator(self.operands, formats)
        found: list[str] = []

        def store(name: str, tensor: Tensor) -> Tensor:
            kept = emulator.store(name, tensor)
            if not bool(torch.isfinite(kept).all()):
                found.append(name)
            return kept

        inputs = self.problems[regime].inputs()
        arithmetic = replace(emulator.arithmetic, store=store)
        run_form(
            emulator.contract,
            inputs,
            dtype=emulator.contract.work,
            arithmetic=arithmetic,
            stages=emulator.stages,
        )
        return found[0] if found else None

    @cached_property
    def _calls(self) -> tuple[Inputs, Inputs, Cotangents]:
        calls = [problem.inputs() for problem in self.problems.values()]
        given = [cotangents(problem, "both") for problem in self.problems.values()]
        return calls[0], together(calls), cotangents_together(given, calls[0])

    def _run(self, emulator: Emulator) -> dict[str, dict[str, Tensor]]:
        one, calls, given = self._calls
        number = len(self.problems)
        o, final = emulator.run(calls)
        gradients = gradients_apart(member_gradients(emulator, calls, given), one, number)
        pairs = zip(
            tokens_apart(o, one, number), states_apart(final, one, number), gradients, strict=True
        )
        return {
            name: {"o": o, "final_state": final, **back.named()}
            for name, (o, final, back) in zip(self.problems, pairs, strict=True)
        }

    def _standards(self, problem: Problem) -> tuple[Reference, Reference]:
        x, given = problem.inputs(), cotangents(problem, "both")
        io = FORMATS[problem.dtype]
        forward = standard(x, self.contract, io, emulate(x, self.contract, io))
        return forward, gradient_standard(
            x, given, self.contract, io, emulate_gradients(x, given, self.contract, io)
        )


def _scored(held: Reference, output: str, found: Tensor) -> tuple[float, str, float]:
    """The worst share of an output's tolerance, of which statistic, and the rms error."""
    if not bool(torch.isfinite(found).all()):
        return math.inf, "not finite", math.inf
    truth, allowed = held.exact(output), held.budgets[output]
    measured = allowed.measure(truth.error(found), truth)
    statistic, share = max(allowed.ratios(measured).items(), key=lambda ratio: ratio[1])
    return share, statistic, measured.rms
