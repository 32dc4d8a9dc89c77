"""The one comparator: an output against the truth, within its tolerance."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Final, Protocol

import torch
from torch import Tensor

from kdaverify.budgets.budget import Budget
from kdaverify.budgets.statistics import rows_of
from kdaverify.checks.negative_controls import negative_controls
from kdaverify.checks.place import ElementPlace, first_true, place
from kdaverify.checks.status import MEANING, Grade, Status, grade_of
from oracles.enclosure import Enclosure
from oracles.signature import TensorCall

TINY: Final = torch.finfo(torch.float64).tiny
"""In the place of a size of 0, which an error of 0 is divided by."""


class HasTolerances(Protocol):
    """What outputs are held against: those of a whole call, or those of a stage."""

    @property
    def budgets(self) -> dict[str, Budget]: ...

    def exact(self, output: str, /) -> Enclosure: ...


@dataclass(frozen=True)
class Comparison:
    """The result for one output; it explains itself when printed.

    Args:
        output: "o", "final_state", or a stage's.
        status: PASS, FAIL or NONFINITE.
        statistic: the worst statistic: rms, largest, row, median, tail, bias, zero or finite;
            ceiling where it alone is broken, or where errors are counted and it is broken.
        value, budget: that statistic and its tolerance (absolute for rms, largest, row, ceiling;
            relative for median, tail, bias; a count of elements for zero and finite).
        ratio: value / tolerance; above 1 fails. inf where the tolerance is 0.
        ratios: of every statistic.
        grade: A componentwise, B row-scaled, C norm only, F.
        worst: the place, None where the output is empty.
        found, exact: the kernel's value and the exact one there.
        ceiling: the proven error bound of that element, and why; "" where it passes or is unknown.
        vacuous: the negative controls that would pass too; with some it is inconclusive.
        peers: the rms error over those of round-to-nearest kernels, where these are typical.
        relative: the rms error over the rms of the exact output.
    """

    output: str
    status: Status
    statistic: str
    value: float
    budget: float
    ratio: float
    ratios: dict[str, float]
    grade: Grade
    worst: ElementPlace | None
    found: float
    exact: float
    ceiling: str = ""
    vacuous: tuple[str, ...] = ()
    peers: tuple[float, ...] = ()
    relative: float = 0.0

    def __str__(self) -> str:
        if self.statistic == "finite":
            are = "1 element is" if self.value == 1 else f"{self.value:.0f} elements are"
            head = f"{self.output}: {are} not finite where the exact value is"
        elif self.statistic == "zero":
            differ = "1 element differs" if self.value == 1 else f"{self.value:.0f} elements differ"
            head = f"{self.output}: {differ} from an exact 0"
        elif self.statistic == "ceiling":
            head = f"{self.output}: error {self.value:.3g}, proven bound {self.budget:.3g}"
        else:
            kind = "relative " if self.statistic in ("median", "tail", "bias") else ""
            head = (
                f"{self.output}: {kind}{self.statistic} error {self.value:.3g}, tolerance"
                f" {self.budget:.3g}"
            )
        if self.statistic not in ("finite", "zero") and math.isfinite(self.ratio):
            # Nothing is a multiple of a tolerance of 0.
            head += f" ({self.ratio:.3g}x tolerance)"
        if self.worst:
            where = f"\n  worst at {self.worst}\n  got {self.found:.9g}, exact {self.exact:.9g}"
        else:
            where = ""
        ratios = ", ".join(f"{name} {ratio:.3g}" for name, ratio in self.ratios.items() if ratio)
        table = f"\n  multiples of the tolerance: {ratios}" if ratios else ""
        ceiling = f"\n  {self.ceiling}" if self.ceiling else ""
        # Of F the head gives the reason; of other grades the letter is the news.
        grade = "" if self.grade == "F" else f"; grade {self.grade}: {MEANING[self.grade]}"
        return f"{head}{grade}{where}{ceiling}{table}"


def compare(output: str, actual: Tensor, standard: HasTolerances, inputs: TensorCall) -> Comparison:
    """Compares `actual` with exact `output`: non-finite masks, exact zeros, the tolerance.

    Args:
        output: "o", "final_state", or a stage's.
        actual: what the kernel returned, of the exact output's shape.
        standard: truth and tolerances of the problem.
        inputs: the problem's inputs, to say what made the worst element.
    """
    truth = standard.exact(output)
    if actual.shape != truth.high.shape:
        raise ValueError(
            f"compare: {output} has shape {list(actual.shape)}, the exact one"
            f" {list(truth.high.shape)}; check shapes first"
        )
    # In one order, however the kernel lays its outputs out: sums then agree in every bit.
    compared = _Compared(output, actual.detach().double().contiguous(), truth.high, inputs)
    lost = ~torch.isfinite(compared.actual)
    if bool(lost.any()):
        return compared.broken(lost, Status.NONFINITE, "finite")
    allowed = standard.budgets[output]
    if allowed.undefined is not None:
        compared = replace(
            compared, actual=torch.where(allowed.undefined, truth.high, compared.actual)
        )
    nonzero = truth.zero & (compared.actual != 0)
    if bool(nonzero.any()):
        return compared.broken(nonzero, Status.FAIL, "zero")
    return _judged(compared, truth, allowed)


def relative_error(error: Tensor, exact: Tensor) -> float:
    """The rms of an error over that of the exact values; 0 where nothing can be compared."""
    largest = exact.abs().max() if exact.numel() else exact.new_zeros(())
    if not bool(torch.isfinite(largest)) or not bool(largest > 0):
        return 0.0
    # Squares of a state that has decayed to 1e-162 underflow: everything is divided by the largest
    # element first.
    return float((error / largest).norm() / (exact / largest).norm())


def _judged(of: _Compared, truth: Enclosure, allowed: Budget) -> Comparison:
    """The comparison of finite elements whose exact zeros are kept."""
    error = truth.error(of.actual)
    found = allowed.measure(error, truth)
    if allowed.ceiling is None or not error.numel():
        top = None
    else:
        top = allowed.ceiling.used(error, truth, allowed.io)
    ratios = allowed.ratios(found) | ({} if top is None else {"ceiling": top.ratio})
    statistic = _headline(ratios, counted=allowed.model is not None)
    if statistic == "ceiling" and top is not None:
        value, budget, at = top.error, top.ceiling, top.at
    else:
        row = int(allowed.row_ratios(found).argmax()) if found.rows.numel() else 0
        value, budget = found.value(statistic, row), allowed.allowed.value(statistic, row)
        at = _worst_element(error, _sizes(statistic, truth.high, allowed), statistic, row)
    passed = ratios[statistic] <= 1
    return Comparison(
        output=of.output,
        status=Status.PASS if passed else Status.FAIL,
        statistic=statistic,
        value=value,
        budget=budget,
        ratio=ratios[statistic],
        ratios=ratios,
        grade=grade_of(ratios),
        worst=None if at is None else place(of.output, at, of.actual.shape, of.inputs),
        found=0.0 if at is None else float(of.actual.flatten()[at]),
        exact=0.0 if at is None else float(truth.high.flatten()[at]),
        ceiling="" if passed else _proof(allowed, error, at),
        vacuous=negative_controls(
            truth.high, truth.zero, lambda wrong: allowed.admits(wrong, truth)
        ),
        peers=tuple(found.rms / rms for rms in allowed.peers if rms and found.rms),
        relative=relative_error(error, truth.high),
    )


def _proof(allowed: Budget, error: Tensor, at: int | None) -> str:
    """Why no conforming kernel errs by that much there, where a bound is known."""
    if at is None or allowed.ceiling is None:
        return ""
    return allowed.ceiling.explain(at, abs(float(error.flatten()[at])))


def _headline(ratios: dict[str, float], *, counted: bool) -> str:
    """The worst statistic. Single roundings come near the ceiling in conforming kernels: it is
    named only where it alone is broken. Where errors are counted it is the tolerance of every
    element: broken, it names the element, which no other statistic does.
    """
    worst = max((name for name in ratios if name != "ceiling"), key=lambda name: ratios[name])
    broken = ratios.get("ceiling", 0.0) > 1
    return "ceiling" if broken and (counted or ratios[worst] <= 1) else worst


@dataclass(frozen=True)
class _Compared:
    """What is compared, in float64 and one memory order."""

    output: str
    actual: Tensor
    exact: Tensor
    inputs: TensorCall

    def broken(self, mask: Tensor, status: Status, statistic: str) -> Comparison:
        """A comparison that ends at a mask: a non-finite element, or an exact zero lost."""
        at = first_true(mask)
        found, exact = float(self.actual.flatten()[at]), float(self.exact.flatten()[at])
        where = place(self.output, at, self.exact.shape, self.inputs)
        return Comparison(
            self.output,
            status,
            statistic,
            float(mask.sum()),
            0.0,
            float("inf"),
            {},
            "F",
            where,
            found,
            exact,
        )


def _sizes(statistic: str, exact: Tensor, allowed: Budget) -> Tensor | None:
    """What every error is divided by, to find the worst element; None: nothing."""
    if statistic == "normalised" and allowed.model is not None:
        deviation = allowed.model.deviation
        return deviation.where(deviation > 0, torch.inf)
    return exact.abs() if statistic in ("median", "tail") else None


def _worst_element(error: Tensor, sizes: Tensor | None, statistic: str, row: int) -> int | None:
    if not error.numel():
        return None
    width = error.shape[-1]
    if statistic == "row":
        return row * width + int(rows_of(error)[row].abs().argmax())
    sized = error.abs() if sizes is None else error.abs() / sizes.clamp(min=TINY)
    return int(sized.argmax())
