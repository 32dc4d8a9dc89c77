"""tt-metal: the correlation of a tensor with its reference."""

from __future__ import annotations

from typing import Final

import torch

from kdaverify.checks.published.rule import (
    PublishedRule,
    RuleResult,
    accepted,
    all_of,
    at_least,
    refused,
)
from kdaverify.checks.published.sample import Sample
from kdaverify.checks.published.says import RuleOutcome

LIMIT: Final = 0.999


def correlated(sample: Sample) -> RuleResult:
    """Math: Pearson's coefficient of a and g at least 0.999; what is not finite counts as 0, but
    not if all is NaN; a constant passes.
    """
    if bool(sample.actual.isnan().all()):
        return refused("all NaN")
    actual = (
        sample.actual.nan_to_num(0.0, 0.0, 0.0).flatten()
        if not sample.errors.finite
        else sample.actual.flatten()
    )
    exact = sample.exact.flatten()
    if bool(actual.any()) != bool(exact.any()):
        return refused("one of the two is all zero")
    if torch.equal(actual, exact):
        return accepted("equal")
    a, g = actual - actual.mean(), exact - exact.mean()
    sizes = float(a.norm()) * float(g.norm())
    return (
        all_of(at_least("PCC", float(a @ g) / sizes, LIMIT))
        if sizes
        else accepted("a constant, whose correlation is masked")
    )


RULES: Final = (
    PublishedRule(
        name="tt-metal-pcc",
        source=(
            "tenstorrent/tt-metal models/common/utility_functions.py @022e2c5, comp_pcc at 0.999"
        ),
        asks="correlation with the reference at least 0.999",
        judge=correlated,
        empty=RuleOutcome.PASS,
    ),
)
