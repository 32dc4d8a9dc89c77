"""Self-consistency: a kernel's backward is the derivative of its own forward."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from kdaverify.adapters.base import Adapter
from kdaverify.budgets.contract import Contract
from kdaverify.budgets.differences import Differences, DifferenceTolerance, along, kept_finite, loss
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.budgets.formats import FORMATS
from kdaverify.checks.compare import Comparison
from kdaverify.checks.execute import CallError, execute
from kdaverify.checks.gradients import run_backward
from kdaverify.checks.outcome import Outcome, skipped
from kdaverify.checks.status import Status
from kdaverify.problems import Problem, cotangents
from kdaverify.problems.cotangents import of_exposed
from kdaverify.problems.directions import Pair, pair
from oracles.autograd import ForwardOnlyError
from oracles.gradients import Cotangents
from oracles.inputs import Inputs
from oracles.tensors import GRADIENTS

# How much one wrong entry changes a projection falls with the number of entries: a single random
# direction does not show it.
DIRECTIONS: Final = 8
# Directions for each input by itself, to say which one it is.
ALONE: Final = 2
METHOD: Final = "differences of its own outputs"


def self_consistency(adapter: Adapter, problem: Problem) -> list[Outcome]:
    """Moves all inputs along random directions; holds the loss's change against gradients.

    Math: `budgets.differences`. No reference value of an output enters: a wrong forward with its
    own derivative passes here and fails elsewhere. float64 gives the curvature and the reference
    ensemble gives the rounding errors, for the tolerances.
    """
    if problem.dtype == "fp64":
        return skipped("float64 kernels are differentiated by gradcheck")
    exposed = adapter.exposes(problem)
    of = of_exposed(exposed)
    case = _Case(adapter, problem, problem.inputs(), cotangents(problem, of), exposed)
    try:
        found = run_backward(adapter, case.inputs, case.given)
        return [case.judged(found)]
    except (ForwardOnlyError, ContractOverflow) as reason:
        return skipped(str(reason))
    except CallError as fault:
        return [Outcome(fault.output, fault.status, fault.message)]


@dataclass(frozen=True)
class _Case:
    adapter: Adapter
    problem: Problem
    inputs: Inputs
    given: Cotangents
    exposed: tuple[str, ...]

    @property
    def backward(self) -> Contract:
        return self.adapter.backward_contract(self.problem.dtype)

    def judged(self, gradients: dict[str, Tensor]) -> Outcome:
        adapter, dtype = self.adapter, self.problem.dtype
        contracts = adapter.contract(dtype), self.backward
        differences = Differences(
            adapter.received(self.inputs), self.given, *contracts, FORMATS[dtype], adapter.received
        )
        sources = {name: GRADIENTS[name] for name in gradients}
        found = self._missed(
            gradients,
            differences.allowance(lambda h: self._pairs(DIRECTIONS, h, [*sources.values()])),
        )
        if found.ratio <= 1:
            return found.outcome(Status.PASS, "")

        def alone(source: str) -> float:
            return self._missed(
                gradients,
                differences.allowance(
                    lambda h: self._pairs(ALONE, h, [source]), found.allowed.outputs
                ),
            ).ratio

        ratios = sorted(((alone(source), name) for name, source in sources.items()), reverse=True)
        suspects = ", ".join(f"{name} ({ratio:.3g})" for ratio, name in ratios if ratio > 1)
        return found.outcome(
            Status.FAIL, f"\n  moved by itself, over tolerance: {suspects or 'none'}"
        )

    def _pairs(self, number: int, h: float, names: Sequence[str]) -> list[Pair]:
        return [
            kept_finite(pair(self.problem, j, h, names), self.inputs, self.backward)
            for j in range(number)
        ]

    def _missed(self, gradients: dict[str, Tensor], allowed: DifferenceTolerance) -> _Missed:
        moved = torch.tensor(
            [self._loss(p.up) - self._loss(p.down) for p in allowed.pairs], dtype=torch.float64
        )
        reported = torch.tensor(
            [along(gradients, p, self.backward) for p in allowed.received], dtype=torch.float64
        )
        if not bool(torch.isfinite(moved - reported).all()):
            raise CallError(
                Status.NONFINITE,
                "loss",
                "loss: outputs or gradients of a moved call are not finite",
            )
        return _Missed(moved, reported, allowed)

    def _loss(self, inputs: Inputs) -> float:
        outputs = execute(self.adapter, inputs, self.exposed).outputs
        do, dS = self.given.of(inputs)
        return loss((outputs["o"], outputs.get("final_state", torch.zeros_like(dS))), (do, dS))


@dataclass(frozen=True)
class _Missed:
    """Changes of the loss along directions, by outputs and gradients, and their tolerance."""

    moved: Tensor
    reported: Tensor
    allowed: DifferenceTolerance

    @property
    def excess(self) -> Tensor:
        return self.allowed.excess(self.moved - self.reported)

    @property
    def rms(self) -> float:
        return float(self.excess.square().mean().sqrt())

    @property
    def ratio(self) -> float:
        return (
            self.rms / self.allowed.noise if self.allowed.noise else math.inf if self.rms else 0.0
        )

    def outcome(self, status: Status, more: str) -> Outcome:
        j = int(self.excess.argmax())
        at = float(self.moved[j])
        by = float(self.reported[j])
        curved = float(self.allowed.curvature[j])
        said = (
            f"loss: outputs and gradients disagree by {self.rms:.3g} rms of {len(self.moved)}"
            f" directions, tolerance {self.allowed.noise:.3g} ({self.ratio:.3g}x tolerance)\n "
            f" worst along direction {j}: its outputs move by {at:.6g}, its gradients give"
            f" {by:.6g}, curvature explains {curved:.3g}{more}"
        )
        ratios, grade = {"rms": self.ratio}, "A" if status is Status.PASS else "F"
        figures = Comparison(
            "loss",
            status,
            "rms",
            self.rms,
            self.allowed.noise,
            self.ratio,
            ratios,
            grade,
            None,
            at,
            by,
        )
        return Outcome("loss", status, said, figures, METHOD)
