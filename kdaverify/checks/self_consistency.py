"""Self-consistency: a kernel's backward is the derivative of its own forward, whatever that forward is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.differences import Allowance, allowance, along, loss, step
from kdaverify.budgets.family import ContractOverflow
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.compare import Comparison
from kdaverify.checks.execute import Misbehaviour, execute
from kdaverify.checks.gradients import run_backward
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.checks.status import Status
from kdaverify.problems import Problem, cotangents
from kdaverify.problems.directions import Pair, pair
from oracles.autograd import ForwardOnlyError
from oracles.gradients import GRADIENTS, Cotangents
from oracles.inputs import Inputs

DIRECTIONS: Final = 8
METHOD: Final = "differences of its own outputs"


def self_consistency(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Moves all inputs at once along signed random directions and holds the change of a loss against what the gradients say.

    Math: `budgets.differences`. No reference value of an output enters: a wrong forward with its own derivative passes here and fails
    elsewhere. float64 gives the curvature and the family gives the noise, as allowances.
    """
    if problem.dtype == "fp64":
        return skipped("float64 kernels are differentiated by gradcheck")
    exposed = adapter.exposes(problem)
    of = "both" if "final_state" in exposed else "o"
    case = _Case(adapter, problem, problem.inputs(), cotangents(problem, of), exposed)
    try:
        found = run_backward(adapter, case.inputs, case.given)
        return [case.judged(found)]
    except (ForwardOnlyError, ContractOverflow) as reason:
        return skipped(str(reason))
    except Misbehaviour as fault:
        return [Outcome(fault.output, fault.status, fault.message)]


@dataclass(frozen=True)
class _Case:
    adapter: Adapter
    problem: Problem
    inputs: Inputs
    given: Cotangents
    exposed: tuple[str, ...]

    def judged(self, gradients: dict[str, Tensor]) -> Outcome:
        found = self._differences(gradients, DIRECTIONS, [name for name in GRADIENTS.values() if getattr(self.inputs, name) is not None])
        if found.ratio <= 1:
            return found.outcome(Status.PASS, "")
        alone = {name: self._differences(gradients, 2, [source]).ratio for name, source in GRADIENTS.items() if name in gradients}
        suspects = [f"{name} ({ratio:.3g})" for name, ratio in sorted(alone.items(), key=lambda item: -item[1]) if ratio > 1]
        return found.outcome(Status.FAIL, f"\n  moved by itself, over budget: {', '.join(suspects) or 'none'}")

    def _differences(self, gradients: dict[str, Tensor], number: int, names: Sequence[str]) -> _Differences:
        adapter, contract, io = self.adapter, self.adapter.contract(self.problem.dtype), FORMATS[self.problem.dtype]
        h = step(contract, io, max(self.inputs.lengths))
        asked = [pair(self.problem, j, h, names) for j in range(number)]
        received = [Pair(adapter.received(p.up), adapter.received(p.down)) for p in asked]
        moved = torch.tensor([self._loss(p.up) - self._loss(p.down) for p in asked], dtype=torch.float64)
        told = torch.tensor([along(gradients, p) for p in received], dtype=torch.float64)
        if not bool(torch.isfinite(moved - told).all()):
            raise Misbehaviour(Status.NONFINITE, "loss", "loss: outputs or gradients of a moved call are not finite")
        return _Differences(moved, told, allowance(adapter.received(self.inputs), received, self.given, contract, io))

    def _loss(self, inputs: Inputs) -> float:
        outputs = execute(self.adapter, inputs, self.exposed).outputs
        do, dS = self.given.of(inputs)
        return loss((outputs["o"], outputs.get("final_state", torch.zeros_like(dS))), (do, dS))


@dataclass(frozen=True)
class _Differences:
    """Changes of the loss along some directions, by the outputs and by the gradients, and how far apart they may be."""

    moved: Tensor
    told: Tensor
    allowed: Allowance

    @property
    def excess(self) -> Tensor:
        return self.allowed.excess(self.moved - self.told)

    @property
    def rms(self) -> float:
        return float(self.excess.square().mean().sqrt())

    @property
    def ratio(self) -> float:
        return self.rms / self.allowed.noise if self.allowed.noise else math.inf if self.rms else 0.0

    def outcome(self, status: Status, more: str) -> Outcome:
        j = int(self.excess.argmax())
        at, by, curved = float(self.moved[j]), float(self.told[j]), float(self.allowed.curvature[j])
        said = (
            f"loss: outputs and gradients disagree by {self.rms:.3g} rms of {len(self.moved)} directions, allowed {self.allowed.noise:.3g} "
            f"({self.ratio:.3g} of budget)\n  worst along direction {j}: its outputs move by {at:.6g}, its gradients say {by:.6g}, "
            f"curvature explains {curved:.3g}{more}"
        )
        ratios, grade = {"rms": self.ratio}, "A" if status is Status.PASS else "F"
        figures = Comparison("loss", status, "rms", self.rms, self.allowed.noise, self.ratio, ratios, grade, None, at, by)
        return Outcome("loss", status, said, figures, METHOD)
