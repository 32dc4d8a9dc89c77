"""The error a kernel may have: the worst of the legal kernels of its contract, statistic by statistic."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from kdaverify.budgets.formats import Format
from kdaverify.budgets.statistics import ErrorStatistics, rms, row_rms, statistics, worst
from oracles.enclosure import Enclosure

# design.md 5: factors over the worst of the family, in the limit of many elements.
RMS_FACTOR, LARGEST_FACTOR, ROW_FACTOR, MEDIAN_FACTOR, TAIL_FACTOR = 1.25, 2.5, 2.5, 1.5, 2.0
# The rms error of rounding to nearest, in units of roundoff: what is left to a kernel that rounds its result and nothing else.
IDEAL_ROUNDING = 0.41
# A row may be wrong by this many units of roundoff of its own size even where the family happens to be exact (2^-10 in bf16).
ROW_UNITS = 0.25


@dataclass(frozen=True)
class Budget:
    """What is allowed of each statistic of `ErrorStatistics`, its factor and small-sample margin included."""

    allowed: ErrorStatistics

    def ratios(self, found: ErrorStatistics) -> dict[str, float]:
        """Every statistic as a fraction of what is allowed; above 1 is over budget.

        An allowance of 0 (the exact value is 0 throughout) is met by 0 only.
        """
        allowed = self.allowed
        return {
            "rms": _ratio(found.rms, allowed.rms),
            "largest": _ratio(found.largest, allowed.largest),
            "row": float(self.row_ratios(found).max()) if found.rows.numel() else 0.0,
            "median": _ratio(found.median, allowed.median),
            "tail": _ratio(found.tail, allowed.tail),
        }

    def row_ratios(self, found: ErrorStatistics) -> Tensor:
        """[rows] error of every row as a fraction of what that row is allowed."""
        ratios = found.rows / self.allowed.rows
        return torch.where(found.rows == 0, torch.zeros_like(ratios), ratios)


def _ratio(found: float, allowed: float) -> float:
    if found == 0:
        return 0.0
    return found / allowed if allowed else math.inf


def small_sample(n: float) -> float:
    """Margin for a statistic known from n elements only: a scale estimated twice from n draws differs by 3 / sqrt(n) at most.

    Math: log of an rms has standard deviation 1 / sqrt(2 n); a ratio of two has 1 / sqrt(n); three of them are allowed.
    """
    return 1.0 + 3.0 / math.sqrt(n) if n > 0 else 1.0


def budget(truth: Enclosure, outputs: list[Tensor], *, io: Format, unit: float, moved: Tensor | None = None) -> Budget:
    """The budget of one output from the family's own outputs on the same problem.

    Math: design.md 5, with E = worst over the family, u the unit roundoff, margin(n) = 1 + 3 / sqrt(n):
        rms <= 1.25 margin E_rms; largest <= 2.5 margin E_largest; row <= 2.5 margin E_row + u/4 rms(row);
        median <= 1.5 margin E_median + u/2; 99 % quantile <= 2 margin E_tail + u.
    No E is taken below what rounding the exact result alone costs; a row's E not below the output's relative error.

    Args:
        truth: the exact output.
        outputs: the same output of every member, float64.
        io: format the output is stored in.
        unit: the contract's unit roundoff for this output.
        moved: what the row allowance is relative to, where not the output itself (S_T - S_0 for the final state).
    """
    E = worst([statistics(truth.error(output), truth, io) for output in outputs])
    exact, n, width = truth.high, truth.high.numel(), truth.high.shape[-1]
    size = rms(exact)
    E_rms = max(E.rms, IDEAL_ROUNDING * io.unit * size)
    E_largest = max(E.largest, io.unit * float(exact.abs().max()) / 2) if n else 0.0
    own = row_rms(exact)
    rows = torch.maximum(E.rows, own * (E_rms / size if size else 0.0))
    slack = ROW_UNITS * unit * (own if moved is None else row_rms(moved))
    return Budget(
        ErrorStatistics(
            rms=RMS_FACTOR * small_sample(n) * E_rms,
            largest=LARGEST_FACTOR * small_sample(n) * E_largest,
            rows=ROW_FACTOR * small_sample(width) * rows + slack,
            median=MEDIAN_FACTOR * small_sample(n) * E.median + io.unit / 2,
            tail=TAIL_FACTOR * small_sample(n / 100) * E.tail + io.unit,
        )
    )
