"""Forward: every output of one call against its exact values; options, what a kernel may do
otherwise, must not change them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kdaverify.adapters.base import Adapter
from kdaverify.checks.execute import execute
from kdaverify.checks.outcome import Outcome, outcomes, skipped


def forward(adapter: Adapter, problem: Any) -> list[Outcome]:
    """Runs the problem once and judges every exposed output."""
    inputs = problem.inputs()
    return outcomes(
        adapter, inputs, lambda: execute(adapter, inputs, adapter.exposes(problem)).outputs
    )


def variant_of(adapter: Adapter, name: str) -> Adapter:
    """The adapter under one of its variants.

    Raises:
        ValueError: it has no such variant.
    """
    variants = adapter.variants()
    if name not in variants:
        raise ValueError(
            f"options: {adapter.name} has no variant {name!r}; it has"
            f" {', '.join(variants) or 'none'}"
        )
    return variants[name]


def implementation_of(adapter: Adapter, detail: Mapping[str, Any]) -> Adapter:
    """The implementation that a property tests: a variant by its detail, or the adapter."""
    return variant_of(adapter, detail["variant"]) if "variant" in detail else adapter


def options(adapter: Adapter, problem: Any, *, variant: str) -> list[Outcome]:
    """Runs the problem once under one of the adapter's variants and judges every exposed output.

    Args:
        variant: a name of `adapter.variants()`.
    """
    other = variant_of(adapter, variant)
    reason = other.supports(problem)
    return skipped(reason) if reason else forward(other, problem)
