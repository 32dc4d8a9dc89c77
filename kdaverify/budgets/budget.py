"""The error a kernel may have: the worst of the contract's conforming kernels, by statistic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final, NamedTuple, TypeVar

import torch
from torch import Tensor

from kdaverify.budgets.bias import allowed_bias
from kdaverify.budgets.ceiling import ErrorBound
from kdaverify.budgets.constants import (
    A_HANDFUL,
    DEVIATIONS,
    FAVOURABLE,
    IDEAL_ROUNDING,
    LARGEST_FACTOR,
    MANY,
    MEDIAN_FACTOR,
    RMS_FACTOR,
    ROW_FACTOR,
    ROW_UNITS,
    SHARP_DEVIATIONS,
    SHARP_DEVIATIONS_OF_MANY,
    SHARP_FACTOR,
    TAIL_FACTOR,
)
from kdaverify.budgets.error_model import ErrorModel
from kdaverify.budgets.formats import Format
from kdaverify.budgets.statistics import (
    ErrorStatistics,
    rms,
    row_rms,
    statistics,
    statistics_of_runs,
    worst,
)
from oracles.enclosure import Enclosure


@dataclass(frozen=True)
class Budget:
    """The tolerance of one output.

    Args:
        allowed: the largest value of each statistic, its factor and margin included.
        io: format the output is stored in.
        lost: what underflow may take from an element; see `statistics`.
        terms: what relative errors are relative to, where larger terms cancel in an element.
        ceiling: the proven error bound of an element, where that is known.
        peers: rms errors of kernels that round to nearest, unless all are unusually small.
        plain: the baseline kernel's output, for standards that compare errors.
        undefined: elements that have no exact value, and only have to be finite.
        model: of the size of every element's error, where roundings are counted.
    """

    allowed: ErrorStatistics
    io: Format
    lost: Tensor | float
    terms: Tensor | None = None
    ceiling: ErrorBound | None = None
    peers: tuple[float, ...] = ()
    plain: Tensor | None = None
    undefined: Tensor | None = None
    model: ErrorModel | None = None

    def measure(self, error: Tensor, truth: Enclosure) -> ErrorStatistics:
        """The statistics of `error` as this tolerance counts them."""
        found = statistics(error, truth, self.io, lost=self.lost, terms=self.terms)
        if self.model is None:
            return found
        return replace(found, normalised=self.model.normalised(error), bias=self.model.bias(error))

    def ratios(self, found: ErrorStatistics) -> dict[str, float]:
        """Every statistic as a multiple of its tolerance; above 1 is over tolerance.

        A tolerance of 0 (the exact value is 0 throughout) is met by 0 only.
        """
        allowed = self.allowed
        return {
            "rms": _ratio(found.rms, allowed.rms),
            "largest": _ratio(found.largest, allowed.largest),
            "row": float(self.row_ratios(found).max()) if found.rows.numel() else 0.0,
            "median": _ratio(found.median, allowed.median),
            "tail": _ratio(found.tail, allowed.tail),
            "bias": _ratio(found.bias, allowed.bias),
            **(
                {}
                if self.model is None
                else {"normalised": _ratio(found.normalised, allowed.normalised)}
            ),
        }

    def admits(self, error: Tensor, truth: Enclosure) -> bool:
        """Whether `error` is within tolerance; the rms, which costs least, decides where it can."""
        return (
            rms(error) <= self.allowed.rms
            and max(self.ratios(self.measure(error, truth)).values()) <= 1
        )

    def row_ratios(self, found: ErrorStatistics) -> Tensor:
        """[rows] error of every row as a multiple of its tolerance."""
        ratios = found.rows / self.allowed.rows
        return torch.where(found.rows == 0, torch.zeros_like(ratios), ratios)


def _ratio(found: float, allowed: float) -> float:
    if found == 0:
        return 0.0
    return found / allowed if allowed else math.inf


class Runs(NamedTuple):
    """The rms error and the bias of each of several runs."""

    rms: tuple[float, ...]
    bias: tuple[float, ...]


NO_RUNS: Final = Runs((), ())


@dataclass(frozen=True)
class EnsembleErrors:
    """What the errors of a reference ensemble come to in one output.

    Args:
        worst: of every statistic, over all reference kernels and draws; `_typical_rows` at least.
        margin: what the spread of the samples adds to it, as factors.
        rounded, drawn: every kernel that rounds to nearest, and every stochastic-rounding sample.
        plain: what the baseline reference kernel makes of the output.
        apart: every sample of kernels of another form.
    """

    worst: ErrorStatistics
    margin: ErrorStatistics
    rounded: Runs
    drawn: Runs
    plain: Tensor
    apart: Runs = NO_RUNS


def ensemble_errors(
    truth: Enclosure,
    rounded: list[Tensor],
    drawn: list[Tensor],
    apart: Sequence[Tensor] = (),
    *,
    io: Format,
    lost: Tensor | float,
    terms: Tensor | None = None,
) -> EnsembleErrors:
    """The errors of the ensemble's own outputs on the same problem.

    Args:
        truth: the exact output.
        rounded: the same output of kernels that round to nearest, float64, the baseline first.
        drawn: of every stochastic-rounding sample.
        apart: of samples of kernels of another form, which say nothing about the spread of those.
        io, lost, terms: as `statistics` takes them.
    """

    def measured(outputs: Sequence[Tensor]) -> list[ErrorStatistics]:
        return statistics_of_runs(
            [truth.error(output) for output in outputs], truth, io, lost=lost, terms=terms
        )

    members, draws, others = measured(rounded), measured(drawn), measured(apart)
    found, margin = worst([*members, *draws, *others]), spread(draws)
    rows = torch.maximum(found.rows, _typical_rows(draws))
    if others:
        rows = torch.maximum(rows, _typical_rows(others))
    # What a row was raised by is part of its margin.
    margin = replace(
        margin, rows=margin.rows * torch.where(rows > 0, found.rows / rows, torch.ones_like(rows))
    )
    return EnsembleErrors(
        replace(found, rows=rows), margin, _runs(members), _runs(draws), rounded[0], _runs(others)
    )


def _typical_rows(draws: list[ErrorStatistics]) -> Tensor:
    """[rows] The error of a row whose samples may all be unusually small.

    Math: its mean times 1 + 3 c, where c is the root mean square of deviation / mean over the rows.
    """
    mean, shares = _scatter(torch.stack([draw.rows for draw in draws]))
    finite = shares[torch.isfinite(shares) & (mean > 0)]
    return mean * (1 + DEVIATIONS * rms(finite))


def _runs(found: list[ErrorStatistics]) -> Runs:
    return Runs(tuple(s.rms for s in found), tuple(s.bias for s in found))


def budget(
    truth: Enclosure,
    rounded: list[Tensor],
    drawn: list[Tensor],
    *,
    io: Format,
    unit: float,
    lost: float,
    moved: Tensor | None = None,
    terms: Tensor | None = None,
    floor: Tensor | float = 0.0,
    sharp: bool = True,
) -> Budget:
    """An output's tolerance from the ensemble's own outputs: `allow` of `ensemble_errors`."""
    errors = ensemble_errors(truth, rounded, drawn, io=io, lost=lost, terms=terms)
    return allow(
        truth,
        errors,
        io=io,
        unit=unit,
        lost=lost,
        moved=moved,
        terms=terms,
        floor=floor,
        sharp=sharp,
    )


def allow(
    truth: Enclosure,
    errors: EnsembleErrors,
    *,
    io: Format,
    unit: float,
    lost: Tensor | float,
    moved: Tensor | None = None,
    terms: Tensor | None = None,
    floor: Tensor | float = 0.0,
    relative: float = 0.0,
    sharp: bool = True,
) -> Budget:
    """The tolerance of one output from the errors of the reference ensemble on the same problem.

    Math: design.md 5, with E = worst over the reference ensemble, u the unit roundoff, margin = 1 +
    3 (deviation / mean of the samples), per statistic:
        rms <= 1.25 margin E_rms, and what `sharp_rms` leaves; largest <= max(2.5, 1.25 margin)
        E_largest; row <= max(2.5, 1.25 margin) E_row + u/4 rms(row);
        median <= 1.5 margin E_median + u/2; 99 % quantile <= 2 margin E_tail + u; bias: see
        `allowed_bias`.
    No E is taken below what rounding the exact result alone costs, nor below what underflow may
    take; a row's E not below the output's relative error.

    Args:
        truth: the exact output.
        errors: of the reference ensemble.
        io: format the output is stored in.
        unit: the contract's unit roundoff for this output.
        lost: what underflow may take from an element.
        moved: what the row tolerance is relative to, where not the output itself (S_T - S_0 where a
            final state has hardly changed).
        terms: likewise for errors of single elements: the size of the terms that cancel in one.
        floor: an error that an element may have even where the ensemble happens to be exact.
        relative: the same, relative to its size, or to that of its terms.
        sharp: whether limits are those of a whole run, which averages over many roundings; those of
            a single product that may hang on a few are 2.5 margin E for largest and rows, and no
            `sharp_rms`.
    """
    exact, least = truth.high, _least(truth, lost, floor)
    floor_rms = max(IDEAL_ROUNDING * io.unit * rms(exact), rms(least))
    worst = errors.worst
    worst = replace(worst, median=max(worst.median, relative), tail=max(worst.tail, relative))
    E = _floored(worst, exact, io, least, floor_rms)
    slack = ROW_UNITS * unit * row_rms(exact if moved is None else moved)
    runs = errors.rounded.rms, errors.drawn.rms
    limit = sharp_rms((*runs[0], *errors.apart.rms), runs[1], floor_rms) if sharp else math.inf
    widest = _widest(errors.margin, E, slack, io, sharp=sharp)
    return Budget(
        replace(widest, rms=min(widest.rms, limit), bias=_bias(errors, exact, io, rms(least))),
        io=io,
        lost=lost,
        terms=terms,
        peers=() if were_favourable(*runs) else runs[0],
        plain=errors.plain,
    )


def _least(truth: Enclosure, lost: Tensor | float, floor: Tensor | float) -> Tensor:
    """The error that every element may have; none where the exact output is zero throughout."""
    nothing = torch.zeros_like(truth.high)
    return nothing if bool(truth.zero.all()) else nothing + lost + floor


def _widest(
    margin: ErrorStatistics, E: ErrorStatistics, slack: Tensor, io: Format, *, sharp: bool
) -> ErrorStatistics:
    """Every statistic but the bias: the factor and the margin that `allow` states, times E."""
    return ErrorStatistics(
        rms=RMS_FACTOR * margin.rms * E.rms,
        largest=_widened(margin.largest, LARGEST_FACTOR, sharp=sharp) * E.largest,
        rows=_widened(margin.rows, ROW_FACTOR, sharp=sharp) * E.rows + slack,
        median=MEDIAN_FACTOR * margin.median * E.median + io.unit / 2,
        tail=TAIL_FACTOR * margin.tail * E.tail + io.unit,
    )


def _floored(
    worst: ErrorStatistics, exact: Tensor, io: Format, least: Tensor, floor_rms: float
) -> ErrorStatistics:
    """The worst of the ensemble, at least one rounding of the exact result, or underflow."""
    size = rms(exact)
    found = max(worst.rms, floor_rms)
    rows = torch.maximum(worst.rows, row_rms(exact) * (found / size if size else 0.0))
    if exact.numel():
        largest = max(worst.largest, io.unit * float(exact.abs().max()) / 2, float(least.max()))
    else:
        largest = 0.0
    return replace(worst, rms=found, largest=largest, rows=torch.maximum(rows, row_rms(least)))


def _bias(errors: EnsembleErrors, exact: Tensor, io: Format, least_rms: float) -> float:
    size = rms(exact)
    least, missed = (x / size if size else math.inf for x in (least_rms, errors.worst.rms))
    rounding = IDEAL_ROUNDING * io.unit / math.sqrt(max(1, exact.numel()))
    return max(
        allowed_bias(errors.rounded.bias, samples, rounding, least, missed)
        for samples in (errors.drawn.bias, errors.apart.bias)
        if samples
    )


def sharp_rms(rounded: Sequence[float], drawn: Sequence[float], floor: float) -> float:
    """What the rms error may be, by a typical sample instead of the worst one.

    Math: 1.1 (1 + n deviation / mean of the samples) max(worst of the rounded, mean of the samples,
    floor) with n = 4, or 3 where the samples are many. At a deviation of 1 %, as of some thousands
    of elements, that is 1.14 times the worst kernel. inf where the samples are exact or overflow,
    which are no estimate then, and where they scatter as those of a handful of roundings do.

    Args:
        rounded: rms errors of the kernels that round to nearest.
        drawn: of the stochastic-rounding samples.
        floor: below which nothing is tested.
    """
    typical = fmean(drawn)
    if not typical or not math.isfinite(typical):
        return math.inf
    deviation = math.hypot(*(x - typical for x in drawn)) / math.sqrt(max(1, len(drawn) - 1))
    if deviation > A_HANDFUL * typical:
        return math.inf
    deviations = SHARP_DEVIATIONS_OF_MANY if len(drawn) >= MANY else SHARP_DEVIATIONS
    return SHARP_FACTOR * (1 + deviations * deviation / typical) * max(*rounded, typical, floor)


def were_favourable(rounded: Sequence[float], drawn: Sequence[float]) -> bool:
    """Whether all kernels that round to nearest were, so that no other need be as good."""
    return fmean(drawn) > FAVOURABLE * max(rounded)


M = TypeVar("M", float, Tensor)


def _widened(margin: M, factor: float, *, sharp: bool) -> M:
    """`factor` and margin: the wider of it and of the rms's where that averages, else both."""
    if not sharp:
        return factor * margin
    if isinstance(margin, Tensor):
        return (RMS_FACTOR * margin).clamp(min=factor)
    return max(factor, RMS_FACTOR * margin)


def spread(draws: list[ErrorStatistics]) -> ErrorStatistics:
    """1 + 3 times every statistic's coefficient of variation: 1 for many roundings, 3 for one."""

    def margin(values: Tensor) -> Tensor:
        return 1 + DEVIATIONS * _scatter(values)[1]

    def scalar(name: str) -> float:
        return float(
            margin(torch.tensor([getattr(draw, name) for draw in draws], dtype=torch.float64))
        )

    rows = margin(torch.stack([draw.rows for draw in draws]))
    return ErrorStatistics(scalar("rms"), scalar("largest"), rows, scalar("median"), scalar("tail"))


def _scatter(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean of several samples, and deviation / mean; 0 where there is nothing but 0."""
    mean = values.mean(0)
    if not values.numel():
        return mean, mean
    return mean, torch.where(mean > 0, values.std(0) / mean, torch.zeros_like(mean))
