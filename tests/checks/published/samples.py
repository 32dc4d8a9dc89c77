"""Outputs worked out by hand, as published rules see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kdaverify.checks.published.registry import RULES
from kdaverify.checks.published.rule import RuleResult
from kdaverify.checks.published.sample import Sample


def sample(
    actual: Sequence[float],
    exact: Sequence[float],
    benchmark: Sequence[float] | None = None,
    **fields: Any,
) -> Sample:
    """An o, in bf16 by default."""

    def tensor(values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64)

    given: dict[str, Any] = {
        "output": "o",
        "dtype": "bf16",
        "stored": "bf16",
        "packed": False,
        **fields,
    }
    return Sample(
        actual=tensor(actual),
        exact=tensor(exact),
        benchmark=None if benchmark is None else tensor(benchmark),
        **given,
    )


def judged_by(
    rule: str,
    actual: Sequence[float],
    exact: Sequence[float],
    benchmark: Sequence[float] | None = None,
    **fields: Any,
) -> RuleResult:
    """What a rule says of such an output."""
    return RULES[rule].says(sample(actual, exact, benchmark, **fields))


def says(
    rule: str,
    actual: Sequence[float],
    exact: Sequence[float],
    benchmark: Sequence[float] | None = None,
    **fields: Any,
) -> str:
    """Its verdict alone."""
    return judged_by(rule, actual, exact, benchmark, **fields).says.value
