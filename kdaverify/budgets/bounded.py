"""Tolerances where roundings can be counted: proven bounds instead of emulated kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from kdaverify.budgets.budget import Budget
from kdaverify.budgets.ensemble import ContractOverflow
from kdaverify.budgets.error_model import ElementBound, ErrorModel, without
from kdaverify.budgets.formats import Format
from kdaverify.budgets.sampled import ExactValues
from kdaverify.budgets.standard import Reference
from kdaverify.budgets.statistics import statistics
from oracles.enclosure import Enclosure
from oracles.pointwise.rounding import Precision, RoundingError

METHOD: Final = "float64, proven radius"
Counted = Mapping[str, tuple[Tensor, RoundingError]]
"""Values by name, and the error of who computes them with some precision."""


@dataclass(frozen=True)
class ResultTraits:
    """What is special about results, by name.

    Args:
        groups: how many groups of elements have roundings of their own: see `ErrorModel`.
        undefined: elements that have no exact value.
    """

    groups: Mapping[str, int]
    undefined: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


def precision_of(fmt: Format) -> Precision:
    return Precision(fmt.unit, fmt.min_normal, torch.finfo(fmt.dtype).max)


@torch.inference_mode()
def bounded_reference(
    exact: Counted, kernel: Counted, formats: Mapping[str, Format], traits: ResultTraits
) -> Reference:
    """Exact values with the oracle's own radius, and the largest error of a conforming kernel.

    Args:
        exact: with the errors of the float64 oracle.
        kernel: with those of a kernel under the contract.
        formats: what each result is returned in; one that a conforming kernel may overflow, as it
            is returned or in what it is made from, is not judged.
    Raises:
        ContractOverflow: every one of them may.
    """
    known = {name: _enclosed(value, error) for name, (value, error) in exact.items()}
    finite = {name: fmt for name, fmt in formats.items() if _stays_finite(*kernel[name], fmt)}
    if not finite:
        raise ContractOverflow("every output may overflow its format; choose milder values")
    budgets = {
        name: _tolerance(
            known[name], kernel[name][1], fmt, traits.undefined.get(name), traits.groups[name]
        )
        for name, fmt in finite.items()
    }
    return Reference(ExactValues(known, METHOD), budgets)


def _enclosed(value: Tensor, error: RoundingError) -> Enclosure:
    """Exact zeros are those where every term is zero: nothing is rounded there."""
    return Enclosure(value, torch.zeros_like(value), error.bound, (value == 0) & (error.bound == 0))


def _stays_finite(value: Tensor, error: RoundingError, fmt: Format) -> bool:
    largest = torch.finfo(fmt.dtype).max
    return not error.overflows and not bool(
        (value.abs() + error.bound.nan_to_num(posinf=0.0) > largest).any()
    )


def _tolerance(
    truth: Enclosure, error: RoundingError, fmt: Format, undefined: Tensor | None, groups: int
) -> Budget:
    """Bounds of every statistic of the error; rms in deviations, and bias, by the model."""
    model = ErrorModel(truth.high, error.variance.sqrt(), error.lean + truth.radius, fmt, groups)
    if undefined is not None:
        model = without(model, undefined)
    finite = error.bound.nan_to_num(posinf=torch.finfo(torch.float64).max ** 0.25)
    most = statistics(finite + truth.radius, truth, fmt)
    allowed = replace(most, normalised=model.most_normalised, bias=model.most_bias)
    return Budget(
        allowed,
        fmt,
        lost=0.0,
        ceiling=ElementBound(error.bound),
        plain=fmt.round(truth.high),
        undefined=undefined,
        model=model,
    )
