"""Figures beside the usual statistics: a measure's value and tolerance, by element or row."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from kdaverify.checks.compare import Comparison
from kdaverify.checks.place import place
from kdaverify.checks.status import Status
from oracles.inputs import Inputs


def figure(
    name: str,
    output: str,
    found: Tensor,
    allowed: Tensor,
    *,
    actual: Tensor,
    exact: Tensor,
    inputs: Inputs,
) -> Comparison:
    """The worst of figures >= 0 against the tolerance of each; only 0 meets a tolerance of 0.

    Args:
        name: of the measure.
        found, allowed: one figure for each element or each row of the output, or one in all.
        actual, exact: the output [..., columns], float64.
        inputs: to say what made the worst element.
    """
    ratios = torch.where(found == 0, 0.0, found / allowed).flatten()
    at = int(ratios.argmax()) if ratios.numel() else 0
    ratio = float(ratios[at]) if ratios.numel() else 0.0
    worst = _element(at, ratios.numel(), (actual - exact).abs())
    return Comparison(
        output=output,
        status=Status.PASS if ratio <= 1 else Status.FAIL,
        statistic=name,
        value=float(found.flatten()[at]) if ratios.numel() else 0.0,
        budget=float(allowed.flatten()[at]) if ratios.numel() else 0.0,
        ratio=ratio,
        ratios={name: ratio},
        grade="A" if ratio <= 1 else "C",
        worst=None if worst is None else place(output, worst, exact.shape, inputs),
        found=0.0 if worst is None else float(actual.flatten()[worst]),
        exact=0.0 if worst is None else float(exact.flatten()[worst]),
    )


def together(usual: Comparison, other: Comparison) -> Comparison:
    """Both of one output in one: the worst figure of all is what it says."""
    worst = other if other.ratio > usual.ratio else usual
    return replace(
        worst, ratios={**usual.ratios, **other.ratios}, grade=max(usual.grade, other.grade)
    )


def _element(at: int, figures: int, error: Tensor) -> int | None:
    """The element that figure `at` is of, the worst of its row or of all."""
    if not error.numel():
        return None
    if figures == error.numel():
        return at
    rows = error.flatten(0, -2)
    if figures == len(rows):
        return at * rows.shape[-1] + int(rows[at].argmax())
    return int(error.argmax())
