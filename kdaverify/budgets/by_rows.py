"""Tolerances where only the rms error of every row is known, whatever it was estimated from."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from kdaverify.budgets.budget import Budget
from kdaverify.budgets.formats import Format
from kdaverify.budgets.sampled import ExactValues
from kdaverify.budgets.standard import Reference
from kdaverify.budgets.statistics import ErrorStatistics
from oracles.enclosure import Enclosure


def reference_by_rows(
    output: str,
    truth: Tensor,
    allowed: Tensor,
    fmt: Format,
    method: str,
    *,
    zero: Tensor | None = None,
    undefined: Tensor | None = None,
) -> Reference:
    """The reference of one output.

    Args:
        truth: float64; allowed: the rms error of every row, over the last axis.
        fmt: the output's; method: how the truth was computed.
        zero: elements that are exactly 0; undefined: those that have no exact value.
    """
    nothing = torch.zeros_like(truth)
    exact = Enclosure(truth, nothing, nothing, nothing.bool() if zero is None else zero)
    inf = math.inf
    statistics = ErrorStatistics(inf, inf, allowed.flatten(), inf, inf, inf)
    budget = Budget(statistics, fmt, lost=0.0, undefined=undefined)
    return Reference(ExactValues({output: exact}, method), {output: budget})
